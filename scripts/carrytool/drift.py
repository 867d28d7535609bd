"""What another release of sglang does to a pin: to its patches, its contract and its versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from overlaytool import contract
from overlaytool.contract import Entry, Finding
from overlaytool.errors import Exit, Refusal
from overlaytool.patch import Patch
from overlaytool.pin import Pin

from carrytool import upstream
from carrytool.carry import FAILS, LANDS, CarriedPatch, Verdict, carrier
from carrytool.upstream import Upstream

PACKAGE = "overlay/sglang/srt/layers/attention/flashinfer_mla_compact"


@dataclass(frozen=True)
class Decisions:
    """What a person decided: patches to leave out, and a folder with what was edited.

    The folder holds `<patch>/sglang/...`, the target's files as the patch should leave them, and
    perhaps `contract.toml`, the new pin's contract in place of the old one's.
    """

    drop: frozenset[str] = frozenset()
    resolved: Path | None = None

    def contract(self, pin: Pin) -> Path:
        """The contract that the target is held to, next to the overlay's."""
        edited = self.resolved / "contract.toml" if self.resolved else None
        return edited if edited and edited.is_file() else pin.folder / "contract.toml"

    def edited(self, patch: str) -> dict[str, bytes]:
        """The edited files of a patch, by their path."""
        folder = self.resolved / patch if self.resolved else Path()
        files = sorted(folder.rglob("*.py")) if self.resolved else []
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@dataclass(frozen=True)
class Drift:
    """A cure is a fault of upstream's that the overlay works around; "held" says it is there."""

    pin: Pin
    own: Upstream
    target: Upstream
    flashinfer: Upstream
    contract: Path
    patches: tuple[Patch, ...]
    carried: tuple[CarriedPatch, ...]
    findings: tuple[Finding, ...]
    cures: tuple[Finding, ...]

    @property
    def exit(self) -> Exit:
        """The highest code that applies."""
        return max(_codes(self))

    @property
    def open(self) -> list[str]:
        """Names of the patches that are not settled."""
        return [patch.name for patch in self.carried if patch.verdict not in LANDS]


def _codes(drift: Drift) -> Iterator[Exit]:
    yield Exit.OK
    for patch in drift.carried:
        if patch.verdict is not Verdict.CLEAN:
            yield Exit.CONFLICT if patch.verdict in FAILS else Exit.REFRESH
    if any(cure.verdict in ("changed", "gone") for cure in drift.cures):
        yield Exit.REFRESH
    for finding in drift.findings:
        if finding.verdict != "held":
            yield Exit.UNTRIED if finding.verdict == "unread" else Exit.CONTRACT


def measure(pin: Pin, to: str | None, decisions: Decisions) -> Drift:
    """Carries the pin's patches to the target and checks its contract there; writes nothing.

    Raises `Refusal` where the pin is unsound, or the target or its FlashInfer can't be had.
    """
    patches = tuple(pin.patches())
    _known(patches, decisions)
    own, target = upstream.of_pin(pin), upstream.target(pin, to)
    wheel, pinned = upstream.flashinfer(pin, own, target), upstream.flashinfer(pin, own, own)
    carried = tuple(_carry(pin, patches, target, decisions))
    there, here = upstream.with_flashinfer(target, wheel), upstream.with_flashinfer(own, pinned)
    file = decisions.contract(pin)
    findings = contract.check(entries(pin, file, "entry"), there, here)
    cures = contract.check(entries(pin, file, "cure"), there)
    located = [tuple(_located(pin, row) for row in rows) for rows in (findings, cures)]
    return Drift(pin, own, target, wheel, file, patches, carried, *located)


def _known(patches: tuple[Patch, ...], decisions: Decisions) -> None:
    names = {patch.name for patch in patches}
    folder = decisions.resolved
    edited = {path.name for path in folder.iterdir() if path.is_dir()} if folder else set()
    strange = sorted((decisions.drop | edited) - names)
    if strange:
        raise Refusal(f"the pin has no patch called {', '.join(strange)}", Exit.USAGE)


def entries(pin: Pin, file: Path, table: str) -> list[Entry]:
    """The rows of the overlay's contract, then those of a pin's."""
    files = (pin.repository / "contract.toml", file)
    return [entry for file in files for entry in contract.load(file, table)]


def _carry(
    pin: Pin, patches: tuple[Patch, ...], target: Upstream, decisions: Decisions
) -> Iterator[CarriedPatch]:
    with carrier(target.read) as series:
        for patch in patches:
            if patch.name in decisions.drop:
                yield CarriedPatch(patch.name, Verdict.DROPPED)
            elif edited := decisions.edited(patch.name):
                yield series.resolve(patch, edited)
            else:
                yield series.carry(patch, (pin.folder / patch.name).absolute())


def _located(pin: Pin, finding: Finding) -> Finding:
    """The finding with the line of the overlay or of the pin's patches that its row names."""
    try:
        folders = [pin.repository / PACKAGE, pin.folder]
        return replace(finding, needed_by=contract.needing_line(folders, finding.needed_by))
    except contract.ContractError:
        return finding  # a contract edited for a new pin names lines of patches still to be
