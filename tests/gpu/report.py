"""Write what the results of GPU runs say into docs/support.md.

Between `<!-- machines -->` or `<!-- kit -->` and its closing mark stands a table that is written
anew. In the other tables, a row whose tests did not run yet gets " (not run yet)" after its status,
and loses it when all of them passed.

usage: python -m tests.gpu.report [--check]
  --check   only tell what would change, and which rows name a test that did not pass
exit: 0 nothing to say; 1 --check found a difference, or a row names a test that did not pass;
      2 usage
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.gpu.machine import OVERLAY, ROOT, overlay_digest

DOCUMENT = ROOT / "docs" / "support.md"
RESULTS = Path(__file__).with_name("results")
PENDING = " (not run yet)"
NOTHING = "*Not run yet.*"
# A test under tests/, with the parameters of one case or without.
TEST = re.compile(r"`([\w/]+\.py::\w+(?:\[[^`]*\])?)`")
# Named by one word: a case of upstream's kit, a refusal of tests/backend/test_support.py.
NAMED = re.compile(r"`(kit|refusal): ([^`]+)`")
OURS = ("gather, FP8", "direct, FP8")

# Case -> variant -> {"outcome", "error"}, as `tests.gpu.kit` writes them.
Kit = dict[str, dict[str, dict[str, str]]]
KIT = "upstream-kit-"


@dataclass(frozen=True)
class Row:
    """A row of the document: what, its status, and the cell that names tests."""

    what: str
    status: str
    evidence: str

    @property
    def tests(self) -> list[str]:
        return TEST.findall(self.evidence)

    @property
    def refusals(self) -> list[str]:
        return [name for kind, name in NAMED.findall(self.evidence) if kind == "refusal"]

    @property
    def kit_cases(self) -> list[str]:
        return [name for kind, name in NAMED.findall(self.evidence) if kind == "kit"]

    def __str__(self) -> str:
        return f"| {self.what} | {self.status} | {self.evidence} |"


def rows(text: str) -> list[Row]:
    """The rows with three cells, without heads and rulers."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [Row(*cell) for cell in cells if len(cell) == 3 and cell[1] != "status"]


@dataclass(frozen=True)
class Results:
    """Outcomes on all machines.

    Attributes:
        machines: machine -> test -> "passed", "failed" or "skipped".
        overlays: machine -> what its runs noted of the overlay, None for one that noted nothing.
        kits: release -> upstream's cases, from upstream-kit-<release>.json.
    """

    machines: dict[str, dict[str, str]]
    overlays: dict[str, set[str | None]]
    kits: dict[str, Kit]

    @classmethod
    def load(cls, folder: Path = RESULTS) -> Results:
        kits = sorted(folder.glob(f"{KIT}*.json"))
        found = {
            path.stem: ElementTree.parse(path).getroot() for path in sorted(folder.glob("*.xml"))
        }
        return cls(
            {machine: dict(_outcomes(root)) for machine, root in found.items()},
            {machine: set(_overlays(root)) for machine, root in found.items()},
            {path.stem.removeprefix(KIT): json.loads(path.read_text()) for path in kits},
        )

    def of(self, row: Row) -> set[str]:
        """Outcomes of what a row names: of each test that needs a GPU, and of each kit case."""
        named = [self._test(test) for test in row.tests if test.startswith("gpu/")]
        return set().union(*named, *(self._kit(case) for case in row.kit_cases))

    def _test(self, test: str) -> set[str]:
        """Of one case, or of all cases of a test; what one machine skips counts where it ran.

        What failed anywhere, with any release, has failed.
        """
        ended: dict[str, set[str]] = {}
        for outcomes in self.machines.values():
            for name, outcome in outcomes.items():
                if test in (name, name.partition("[")[0]):
                    ended.setdefault(name, set()).add(outcome)
        return _where_it_ran(ended.values())

    def _kit(self, case: str) -> set[str]:
        """Of both ways of reading; likewise over all releases."""
        found = [cases[case] for cases in self.kits.values() if case in cases]
        ended = ({ends[name]["outcome"] for ends in found if name in ends} for name in OURS)
        return set().union(*(_where_it_ran([ends]) for ends in ended))


def _where_it_ran(ended: Iterable[set[str]]) -> set[str]:
    return set().union(*(ends - {"skipped"} or ends for ends in ended)) or {"not run"}


def _overlays(root: ElementTree.Element) -> Iterator[str | None]:
    for suite in root.iter("testsuite"):
        noted = suite.find("properties/property[@name='overlay']")
        yield None if noted is None else noted.get("value")


def _outcomes(root: ElementTree.Element) -> Iterator[tuple[str, str]]:
    for case in root.iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        file = case.attrib["classname"].removeprefix("tests.").replace(".", "/")
        name = f"{file}.py::{case.attrib['name']}"
        yield name, "skipped" if "skipped" in kinds else outcome


def render(text: str, results: Results) -> str:
    """The document with its tables and marks as the results have them."""
    for row in rows(text):
        text = text.replace(str(row), str(marked(row, results.of(row))))
    text = _between(text, "machines", machines(results))
    return _between(text, "kit", kit(results.kits))


def _between(text: str, name: str, table: str) -> str:
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    return f"{before}{mark}{table}\n{end}{after}"


def marked(row: Row, outcomes: set[str]) -> Row:
    status = row.status.removesuffix(PENDING)
    return replace(row, status=status + PENDING if "not run" in outcomes else status)


def machines(results: Results) -> str:
    heads = ("machine and sglang", "overlay", "passed", "failed", "skipped")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for machine, outcomes in results.machines.items():
        here = overlay_digest(OVERLAY, machine.rpartition("-sglang-")[2])
        overlay = "this one" if results.overlays[machine] == {here} else "an earlier one"
        found = list(outcomes.values())
        counts = [str(found.count(outcome)) for outcome in ("passed", "failed", "skipped")]
        lines.append(f"| {machine} | {overlay} | {' | '.join(counts)} |")
    return "\n".join(lines) if results.machines else NOTHING


def kit(kits: dict[str, Kit]) -> str:
    """A row a case; a cell names releases only where they differ."""
    if not kits:
        return NOTHING
    cases = list(dict.fromkeys(case for outcomes in kits.values() for case in outcomes))
    variants = list(next(iter(next(iter(kits.values())).values())))
    lines = [f"| case | {' | '.join(variants)} |", "|---" * (len(variants) + 1) + "|"]
    for case in cases:
        ended = {release: outcomes.get(case, {}) for release, outcomes in kits.items()}
        lines.append(f"| {case} | {' | '.join(_cell(ended, name) for name in variants)} |")
    if len(kits) > 1:
        lines[:0] = [f"A cell that names no release holds for sglang {' and '.join(kits)}.", ""]
    return "\n".join(lines)


def _cell(ended: dict[str, dict[str, dict[str, str]]], variant: str) -> str:
    texts = {release: _outcome(ends.get(variant)) for release, ends in ended.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{release}: {text}" for release, text in texts.items())


def _outcome(ended: dict[str, str] | None) -> str:
    """The outcome, and of an error its type: messages hold addresses and figures."""
    if ended is None:
        return "not run"
    kind = ended["error"].partition(":")[0]
    return f"{ended['outcome']}: {kind}" if ended["outcome"] == "failed" else ended["outcome"]


def unproven(text: str, results: Results) -> list[str]:
    """Rows that name something that ran and did not pass."""
    return [row.what for row in rows(text) if results.of(row) - {"passed", "not run"}]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    text, results = DOCUMENT.read_text(), Results.load()
    wanted, failed = render(text, results), unproven(text, results)
    if not check:
        DOCUMENT.write_text(wanted)
    elif wanted != text:
        print(f"{DOCUMENT.name} differs from the results: run python -m tests.gpu.report")
    for what in failed:
        print(f"{DOCUMENT.name}: the row {what!r} names a test that did not pass")
    return 1 if failed or (check and wanted != text) else 0


if __name__ == "__main__":
    sys.exit(main())
