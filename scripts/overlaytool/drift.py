"""What another release of sglang does to a pin: to its patches, its contract and its versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaytool import contract, upstream
from overlaytool.carry import FAILS, CarriedFile, CarriedPatch, Carrier, Verdict
from overlaytool.contract import Entry, Finding
from overlaytool.diff import Patch
from overlaytool.errors import Exit, Refusal
from overlaytool.pin import Pin
from overlaytool.symbols import Read
from overlaytool.upstream import Upstream

PACKAGE = "overlay/sglang/srt/layers/attention/flashinfer_mla_compact"
MOST_CANDIDATES = 3
TELLING_LENGTH = 12  # shorter lines stand in every file


@dataclass(frozen=True)
class Decisions:
    """What a person decided: patches to leave out, and a folder with what was edited.

    The folder holds `<patch>/sglang/...`, the target's files as the patch should leave them, and
    perhaps `contract.toml`, the new pin's contract in place of the old one's.
    """

    drop: frozenset[str] = frozenset()
    resolved: Path | None = None

    def contract(self, pin: Pin) -> Path:
        """The contract that the target is held to, beside the overlay's."""
        edited = self.resolved / "contract.toml" if self.resolved else None
        return edited if edited and edited.is_file() else pin.folder / "contract.toml"

    def edited(self, patch: str) -> dict[str, bytes]:
        """The edited files of a patch, by their path."""
        folder = self.resolved / patch if self.resolved else None
        files = sorted(folder.rglob("*.py")) if folder and folder.is_dir() else []
        return {file.relative_to(folder or "").as_posix(): file.read_bytes() for file in files}


@dataclass(frozen=True)
class Cure:
    """A fault of upstream's that the overlay or a patch lives on, and whether it is gone."""

    file: str
    symbol: str
    code: str
    landed: bool
    needed_by: str


@dataclass(frozen=True)
class Drift:
    """`candidates` maps a file that a patch no longer fits to files that hold its lines now."""

    pin: Pin
    own: Upstream
    target: Upstream
    flashinfer: Upstream
    series: str
    contract: Path
    patches: tuple[Patch, ...]
    carried: tuple[CarriedPatch, ...]
    candidates: Mapping[str, tuple[str, ...]]
    findings: tuple[Finding, ...]
    cures: tuple[Cure, ...]

    @property
    def exit(self) -> Exit:
        """The highest code that applies."""
        return max(_codes(self))


def _codes(drift: Drift) -> Iterable[Exit]:
    yield Exit.OK
    for patch in drift.carried:
        if patch.verdict in FAILS:
            yield Exit.CONFLICT
        elif patch.verdict is not Verdict.CLEAN:
            yield Exit.REFRESH
    if any(cure.landed for cure in drift.cures):
        yield Exit.REFRESH
    for finding in drift.findings:
        if finding.verdict == "unread":
            yield Exit.UNTRIED
        elif finding.verdict != "held":
            yield Exit.CONTRACT


def measure(pin: Pin, to: str | None, decisions: Decisions) -> Drift:
    """Carries the pin's patches to the target and checks its contract there; writes nothing.

    Raises `Refusal` where the pin is unsound, or the target or its FlashInfer can't be had.
    """
    patches = tuple(pin.patches())
    _known(patches, decisions)
    own, target = upstream.of_pin(pin), upstream.target(pin, to)
    wheel, pinned = upstream.flashinfer(pin, own, target), upstream.flashinfer(pin, own, own)
    carried = _carry(patches, own, target, decisions)
    reads = (upstream.with_flashinfer(target, wheel), upstream.with_flashinfer(own, pinned))
    file = decisions.contract(pin)
    findings = contract.check(entries(pin, file, "entry"), *reads)
    return Drift(
        pin,
        own,
        target,
        wheel,
        _series_digest(pin),
        file,
        patches,
        carried,
        _candidates(patches, carried, target),
        tuple(_located(pin, finding) for finding in findings),
        tuple(_cure(pin, entry, reads[0]) for entry in entries(pin, file, "cure")),
    )


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


def _series_digest(pin: Pin) -> str:
    total = hashlib.sha256()
    for name in pin.series():
        total.update(pin.patch_bytes(name))
    return total.hexdigest()


def _carry(
    patches: tuple[Patch, ...], own: Upstream, target: Upstream, decisions: Decisions
) -> tuple[CarriedPatch, ...]:
    carrier = Carrier(own.read, target.read, (target.name, own.name))
    done = []
    for patch in patches:
        edited = decisions.edited(patch.name)
        if patch.name in decisions.drop:
            done.append(carrier.drop(patch))
        elif edited:
            done.append(carrier.resolve(patch, edited))
        else:
            done.append(carrier.carry(patch))
    return tuple(done)


def _located(pin: Pin, finding: Finding) -> Finding:
    if finding.verdict == "held":
        return finding
    line = needing_line(pin, finding.needed_by)
    return Finding(finding.file, finding.symbol, finding.verdict, finding.old, finding.new, line)


def needing_line(pin: Pin, needed_by: str) -> str:
    """The line of the overlay or of the pin's patches that a contract row names."""
    try:
        return contract.needing_line([pin.repository / PACKAGE, pin.folder], needed_by)
    except contract.ContractError:
        return needed_by  # a contract edited for a new pin names lines of patches still to be


def _cure(pin: Pin, entry: Entry, read: Read) -> Cure:
    [finding] = contract.check([entry], read)
    landed = finding.verdict in ("changed", "gone")
    code = "; ".join(entry.wanted)
    return Cure(entry.file, entry.symbol, code, landed, needing_line(pin, entry.needed_by))


def _candidates(
    patches: tuple[Patch, ...], carried: tuple[CarriedPatch, ...], target: Upstream
) -> dict[str, tuple[str, ...]]:
    lost = {
        file.path
        for patch in carried
        for file in patch.files
        if file.verdict in (Verdict.GONE, Verdict.CONFLICT)
    }
    context = {
        file.path: {
            line.strip()
            for hunk in file.hunks
            for line in hunk.old
            if len(line.strip()) >= TELLING_LENGTH
        }
        for patch in patches
        for file in patch.files
        if file.path in lost
    }
    return {path: _holders(path, lines, target) for path, lines in sorted(context.items())}


def _holders(path: str, lines: set[bytes], target: Upstream) -> tuple[str, ...]:
    """The files that hold most of these lines, best first; the path itself is not news."""
    scores = []
    for other in target.paths if lines else ():
        content = target.read(other) or b"" if other != path else b""
        score = sum(line in content for line in lines)
        if score * 2 >= len(lines):
            scores.append((-score, other))
    return tuple(other for _, other in sorted(scores)[:MOST_CANDIDATES])


def reviews(drift: Drift) -> Iterable[tuple[str, CarriedFile]]:
    """(patch, file) of every file that a person has to look at, with text to look at."""
    for patch in drift.carried:
        for file in patch.files:
            if file.review is not None:
                yield patch.name, file
