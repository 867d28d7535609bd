"""Write what the results of GPU runs say into docs/support.md.

The tables between `<!-- machines -->` or `<!-- kit -->` and its closing mark are written anew. In
the others, a row whose tests did not run yet gets " (not run yet)" after its status, until they do.

usage: python -m tests.gpu.report
exit: 0 written; 1 written, and a row names a test that did not pass
"""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from tests.gpu.machine import OVERLAY, ROOT, overlay_digest

DOCUMENT = ROOT / "docs" / "support.md"
RESULTS = Path(__file__).with_name("results")
PENDING = " (not run yet)"
OURS = ("gather, FP8", "direct, FP8")
KIT = "upstream-kit-"
Kit = dict[str, dict[str, dict[str, str]]]  # case -> variant -> {"outcome", "error"}


@dataclass(frozen=True)
class Row:
    """A row of the document: what, its status, and the cell that names tests."""

    what: str
    status: str
    evidence: str

    @property
    def tests(self) -> list[str]:
        """Under tests/, with the parameters of one case or without."""
        return re.findall(r"`([\w/]+\.py::\w+(?:\[[^`]*\])?)`", self.evidence)

    def named(self, kind: str) -> list[str]:
        """Cases of a "kit" or of a "refusal"."""
        return re.findall(rf"`{kind}: ([^`]+)`", self.evidence)

    def __str__(self) -> str:
        return f"| {self.what} | {self.status} | {self.evidence} |"


def rows(text: str) -> list[Row]:
    """The rows with three cells, without heads and rulers."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [Row(*cell) for cell in cells if len(cell) == 3 and cell[1] != "status"]


class Results:
    """All JUnit files of a folder, by machine, and upstream's cases, by release."""

    def __init__(self, folder: Path = RESULTS) -> None:
        runs, kits = sorted(folder.glob("*.xml")), sorted(folder.glob(f"{KIT}*.json"))
        self.machines = {path.stem: ElementTree.parse(path).getroot() for path in runs}
        self.kits: dict[str, Kit] = {
            path.stem.removeprefix(KIT): json.loads(path.read_text()) for path in kits
        }
        self._ended: dict[str, set[str]] = defaultdict(set)
        for run in self.machines.values():
            for test, outcome in outcomes(run).items():
                self._ended[test].add(outcome)
        for cases in self.kits.values():
            for case, ways in cases.items():
                for way, end in ways.items():
                    self._ended[f"{case}[{way}]"].add(end["outcome"])

    def of(self, row: Row) -> set[str]:
        """Outcomes of each test that needs a GPU, and of each kit case with both ways of reading.

        What one machine skips counts where it ran. What failed anywhere has failed.
        """
        wanted = [test for test in row.tests if test.startswith("gpu/")]
        wanted += [f"{case}[{way}]" for case in row.named("kit") for way in OURS]
        return set().union(*map(self._of_one, wanted))

    def _of_one(self, wanted: str) -> set[str]:
        names = [one for one in self._ended if wanted in (one, one.partition("[")[0])]
        ended = (self._ended[name] for name in names)
        return set().union(*(ends - {"skipped"} or ends for ends in ended)) or {"not run"}


def outcomes(run: ElementTree.Element) -> dict[str, str]:
    """Test -> "passed", "failed" or "skipped"."""
    found = {}
    for case in run.iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        file = case.attrib["classname"].removeprefix("tests.").replace(".", "/")
        found[f"{file}.py::{case.attrib['name']}"] = "skipped" if "skipped" in kinds else outcome
    return found


def unproven(text: str, results: Results) -> list[str]:
    """Rows that name something that ran and did not pass."""
    return [row.what for row in rows(text) if results.of(row) - {"passed", "not run"}]


def render(text: str, results: Results) -> str:
    """The document with its tables and marks as the results have them."""
    for row in rows(text):
        status = row.status.removesuffix(PENDING) + PENDING * ("not run" in results.of(row))
        text = text.replace(str(row), str(replace(row, status=status)))
    for name, table in (("machines", machines(results)), ("kit", kit(results.kits))):
        block = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- /{name} -->)", re.DOTALL)
        text = block.sub(f"{table}\n".replace("\\", r"\\"), text)
    return text


def machines(results: Results) -> str:
    body = []
    for machine, run in results.machines.items():
        here = overlay_digest(OVERLAY, machine.rpartition("-sglang-")[2])
        noted = {suite.find("*/property[@name='overlay']") for suite in run}
        same = {None if one is None else one.get("value") for one in noted} == {here}
        found = list(outcomes(run).values())
        counts = [str(found.count(outcome)) for outcome in ("passed", "failed", "skipped")]
        body.append([machine, "this one" if same else "an earlier one", *counts])
    return _table(["machine and sglang", "overlay", "passed", "failed", "skipped"], body)


def kit(kits: dict[str, Kit]) -> str:
    """A row a case; a cell names releases only where they differ."""
    first: Kit = next(iter(kits.values()), {})
    variants = list(next(iter(first.values()), {}))
    cases = dict.fromkeys(case for one in kits.values() for case in one)
    body = [[case, *(_cell(kits, case, variant) for variant in variants)] for case in cases]
    note = f"A cell that names no release holds for sglang {' and '.join(kits)}.\n\n"
    return (note if len(kits) > 1 else "") + _table(["case", *variants], body)


def _cell(kits: dict[str, Kit], case: str, variant: str) -> str:
    """The outcome, and of a failure its type: messages hold addresses and figures."""
    texts = {}
    for release, one in kits.items():
        end = one.get(case, {}).get(variant, {"outcome": "not run", "error": ""})
        kind = f": {end['error'].partition(':')[0]}" if end["outcome"] == "failed" else ""
        texts[release] = end["outcome"] + kind
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{release}: {text}" for release, text in texts.items())


def _table(heads: list[str], body: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *body)]
    lines.insert(1, "|---" * len(heads) + "|")
    return "\n".join(lines) if body else "*Not run yet.*"


def main() -> int:
    results = Results()
    text = render(DOCUMENT.read_text(), results)
    DOCUMENT.write_text(text)
    failed = unproven(text, results)
    for what in failed:
        print(f"{DOCUMENT.name}: the row {what!r} names a test that did not pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
