"""Prove the gain on this card: FP8 as shipped, FP8 compact and BF16 in turn, on the same prompts.

usage: %(prog)s [MODEL] [--out FOLDER]

MODEL is a checkpoint folder of any MLA model that this card can serve; without one, a small model
is made whose right tokens are known. Writes proof.json and, with matplotlib, proof.png: attach both
to a report. Run it with the Python that has sglang and this backend.

exit status: 0 the tokens of FP8 compact equal those of FP8 as shipped; 1 they differ, or an engine
failed; 2 usage; 130 interrupted (no process is left running, the same command continues).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from bench import plots
from bench.compare import comparison
from bench.ready import require_host
from bench.results import Results, paired_ratio
from bench.runner import WorkerFailed, run
from bench.serve import add_options, plan_from, results_for

ROOT = Path(__file__).resolve().parents[1]
SMALL_LAYERS = 26


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the engines then, too
    parser = _parser()
    chosen = parser.parse_args(arguments)
    chosen.out = chosen.folder / "proof.json"
    try:
        require_host()
        chosen.model = chosen.model or _small_model(chosen.folder / "model")
        plan = plan_from(chosen)
        _make_folder(chosen.folder)
        results = results_for(plan, chosen.out)
        run(plan, results)
    except ValueError as problem:
        parser.error(str(problem))
    except WorkerFailed as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: finished records are kept, the same command continues", file=sys.stderr)
        return 130
    return _tell(results, chosen.folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, nargs="?", help="checkpoint folder")
    parser.add_argument("--out", type=Path, default=Path("out/proof"), dest="folder")
    parser.add_argument("--loads", nargs="+", default=["1x100", "1x8192", "16x1024"])
    parser.add_argument("--pool", type=int, default=0, help="KV tokens; 0: what fits")
    parser.add_argument("--repeats", type=int, default=3)
    add_options(parser)
    # Stock's step takes the longer the more memory the card has: tenths of a second on a large one.
    parser.set_defaults(setups=["stock", "compact", "bf16"], interleave=False, tokens=16, accept=0)
    return parser


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: {error.strerror}: name another folder.") from None


def _small_model(folder: Path) -> Path:
    """Made by a process of its own, which gives its device memory back."""
    _make_folder(folder)
    if not (folder / "config.json").exists():
        command = [sys.executable, "-m", "bench.model", str(folder.resolve())]
        made = subprocess.run([*command, "--layers", str(SMALL_LAYERS)], cwd=ROOT)
        if made.returncode:
            raise ValueError(f"The small model can't be made in {folder}: see above.")
    return folder


def _tell(results: Results, folder: Path) -> int:
    lines, fine = summary(results)
    print("\n".join(lines))
    print(f"attach to a report: {folder / 'proof.json'}{_picture(results, folder)}")
    return 0 if fine else 1


def summary(results: Results) -> tuple[list[str], bool]:
    """What the records say, as lines, and whether the tokens are as they should be."""
    lines, fine = comparison(results, "stock")
    lines.append("")
    for load in results.loads():
        stock, compact = (results.find(name, load) for name in ("stock", "compact"))
        if stock and compact:
            ratio = paired_ratio(stock, compact)
            lines.append(f"{load}: {ratio:.1f} times as fast as FP8 as shipped")
    same = "equal" if fine else "DIFFERENT (see the table)"
    return [*lines, f"tokens of FP8 compact and FP8 as shipped: {same}"], fine


def _picture(results: Results, folder: Path) -> str:
    device = results.records[0]["host"]["device"]
    try:
        plots.bars(results, folder / "proof.png", f"{results.about['model']} on {device}")
    except ImportError:
        print("no picture: matplotlib is not installed", file=sys.stderr)
        return ""
    return f", {folder / 'proof.png'}"
