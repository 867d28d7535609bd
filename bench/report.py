"""Write the tables and pictures of README.md and docs/ from the JSON files of `bench.serve` and
`bench.kernels`.

A table stands between two lines: <!-- bench:NAME --> and <!-- /bench -->. NAME is tokens,
tokens-0.5.23, ratios, speculation, first-token, launches, pool, proof, goals, kernels,
kernel-ratios, verify or hosts. What lies between is replaced, and kept where there are no figures
for it. A picture stands there in the same way, once it is drawn: its NAME is picture- with tokens,
bf16, fp8, context, batch, pool or roofline after it.

  python -m bench.report             draw the pictures (needs matplotlib), rewrite the tables
  python -m bench.report --check     only tell which files hold other tables or pictures

Another matplotlib may draw other bytes from the same figures; without one, pictures are not
checked.

exit status: 0 all are those of the JSON files; 1 --check found others; 2 usage, a folder or
document that is not there, or a marker that can't be read.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from bench import pictures, tables
from bench.markdown import MISSING

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"(<!-- bench:([\w.-]+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)


def render(text: str, results: Path, images: Path = IMAGES, keep: bool = False) -> str:
    """`text` with every table and every link to a picture replaced; `keep` those without figures.

    ValueError for a name or a marker that is not known.
    """
    if len(BLOCK.findall(text)) != text.count("<!-- bench:"):
        raise ValueError("a <!-- bench:NAME --> has no <!-- /bench --> after it.")

    def replace(match: re.Match[str]) -> str:
        content = _content(match[2], results, images)
        if keep and content in (MISSING, "") and match[3].strip():
            return match[0]
        return f"{match[1]}{content}\n{match[4]}"

    return BLOCK.sub(replace, text)


def _content(name: str, results: Path, images: Path) -> str:
    picture = name.removeprefix("picture-")
    if picture != name and picture in pictures.PICTURES:
        return pictures.link(picture, images)
    if name not in tables.TABLES:
        raise ValueError(f"no table is named {name!r}: use one of {', '.join(tables.TABLES)}.")
    return tables.TABLES[name](results)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--pictures", type=Path, default=IMAGES)
    parser.add_argument("documents", type=Path, nargs="*")
    chosen = parser.parse_args(arguments)
    documents = chosen.documents or [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    try:
        _require_all_there(chosen.results, documents)
        if not chosen.check:
            _draw(chosen.results, chosen.pictures)
        other = _other_pictures(chosen) if chosen.check else []
        stale = [path for path in documents if _rewrite(path, chosen)]
    except ValueError as problem:
        parser.error(str(problem))
    for path in stale:
        print(f"{path}: {'holds other tables' if chosen.check else 'rewritten'}")
    for path in other:
        print(f"{path}: another picture")
    return 1 if chosen.check and (stale or other) else 0


def _require_all_there(results: Path, documents: list[Path]) -> None:
    """Without its figures every table would be emptied."""
    if not results.is_dir():
        raise ValueError(f"--results {results} is not a folder: name the one of the JSON files.")
    for path in documents:
        if not path.is_file():
            raise ValueError(f"{path} is not there: name a document.")


def _rewrite(path: Path, chosen: argparse.Namespace) -> bool:
    """Whether the tables of a document are not those of the JSON files."""
    text = path.read_text()
    try:
        wanted = render(text, chosen.results, chosen.pictures, keep=not chosen.check)
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None
    if wanted != text and not chosen.check:
        path.write_text(wanted)
    return wanted != text


def _draw(results: Path, images: Path) -> None:
    try:
        pictures.draw(results, images)
    except ImportError:
        print("no pictures: matplotlib is not installed", file=sys.stderr)


def _other_pictures(chosen: argparse.Namespace) -> list[Path]:
    """Pictures that are not what the JSON files give now."""
    with tempfile.TemporaryDirectory() as folder:
        _draw(chosen.results, Path(folder))
        drawn = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    places = [chosen.pictures / name for name in sorted(drawn)]
    return [path for path in places if not path.exists() or path.read_bytes() != drawn[path.name]]


if __name__ == "__main__":
    sys.exit(main())
