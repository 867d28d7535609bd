"""What another release of sglang does to a pin: to its patches, and to what it depends on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from overlaytool.errors import Exit, Refusal
from overlaytool.patch import Patch
from overlaytool.pin import Pin

from carrytool import upstream
from carrytool.carry import FAILS, LANDS, CarriedPatch, Verdict, carrier
from carrytool.compare import Change, Judged, compare
from carrytool.needs import Needs
from carrytool.upstream import Upstream

_CODES = {Judged.READ: Exit.READ, Judged.BROKEN: Exit.CONTRACT, Judged.UNREAD: Exit.UNTRIED}


@dataclass(frozen=True)
class Decisions:
    """What a person decided: patches to leave out, a folder with what was edited, what was read.

    The folder holds `<patch>/sglang/...`, the target's files as the patch should leave them.
    """

    drop: frozenset[str] = frozenset()
    resolved: Path | None = None
    read: bool = False

    def edited(self, patch: str) -> dict[str, bytes]:
        """The edited files of a patch, by their path."""
        folder = self.resolved / patch if self.resolved else Path()
        files = sorted(folder.rglob("*.py")) if self.resolved else []
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@dataclass(frozen=True)
class Drift:
    """Everything that a report says; a name that is not among the changes is untouched."""

    pin: Pin
    own: Upstream
    target: Upstream
    flashinfer: Upstream
    decisions: Decisions
    patches: tuple[Patch, ...]
    carried: tuple[CarriedPatch, ...]
    names: int
    changes: tuple[Change, ...]

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
    yield from (_CODES[change.verdict] for change in drift.changes)


def measure(pin: Pin, to: str | None, decisions: Decisions, base: str | None = None) -> Drift:
    """Carries the pin's patches to the target and compares what it depends on; writes nothing.

    The comparison starts from the release `base`, by default the pin's own. Raises `Refusal` where
    the pin is unsound, or the target or its FlashInfer can't be had.
    """
    patches = tuple(pin.patches())
    _known(patches, decisions)
    own = upstream.target(pin, base or pin.release)
    target = upstream.target(pin, to)
    wheel, pinned = upstream.flashinfer(pin, own, target), upstream.flashinfer(pin, own, own)
    carried = tuple(_carry(pin, patches, target, decisions))
    there, here = upstream.with_flashinfer(target, wheel), upstream.with_flashinfer(own, pinned)
    needs = Needs(pin, here, upstream.of_pin(pin))
    gc.disable()  # syntax trees have no cycles, and most of the time would go to looking for some
    try:
        changes = tuple(compare(needs, here, there))
    finally:
        gc.freeze()
        gc.enable()
    return Drift(pin, own, target, wheel, decisions, patches, carried, len(needs.uses), changes)


def _known(patches: tuple[Patch, ...], decisions: Decisions) -> None:
    names = {patch.name for patch in patches}
    folder = decisions.resolved
    edited = {path.name for path in folder.iterdir() if path.is_dir()} if folder else set()
    strange = sorted((decisions.drop | edited) - names)
    if strange:
        raise Refusal(f"the pin has no patch called {', '.join(strange)}", Exit.USAGE)


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
