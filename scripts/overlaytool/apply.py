"""From one state of a tree to another: what changes, checked against the lock, then written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaytool import contract, disk, fetch
from overlaytool.disk import Change
from overlaytool.errors import Exit, Refusal
from overlaytool.lock import ABSENT, Entry, Lock, digest
from overlaytool.patch import Mismatch, backward, forward
from overlaytool.pin import Pin
from overlaytool.state import APPLIED, PRISTINE, Found, Survey, other_release, survey
from overlaytool.tree import Tree


@dataclass(frozen=True)
class Plan:
    """What a verb would write, in order, and the states that it was made from."""

    survey: Survey
    changes: tuple[Change, ...]


def plan_apply(pin: Pin, tree: Tree, lock: Lock) -> Plan:
    """What `apply` would write: the overlay's files first, then the files that lead to them.

    A patched file of an earlier revision starts again from the pinned wheel, as the patches that
    made it are not kept. What earlier revisions alone had goes last, when nothing imports it.
    """
    seen = _refuse_foreign(pin, tree, survey(tree, lock))
    patches = pin.patches()
    overlay = pin.overlay()
    _refuse_unlocked(overlay, lock)
    contract.require(pin, tree.read)

    def wanted(found: Found) -> bytes | None:
        entry = found.entry
        if found.retired:
            return _pristine(entry, pin, lock)
        if entry.patches:
            base = found.data if found.state == PRISTINE else _pristine(entry, pin, lock)
            return forward(patches, entry.path, base)
        file = overlay.get(entry.path)
        return file.read_bytes() if file else None

    todo = [f for f in seen.found if digest(f.data) != f.entry.applied]
    todo.sort(key=lambda f: (f.retired, _order(f.entry, pin)))
    return Plan(seen, _changes(todo, wanted, lambda entry: entry.applied))


def plan_unapply(pin: Pin, tree: Tree, lock: Lock, wheel: Path | None = None) -> Plan:
    """What `unapply` would write, in the reverse order of `apply`.

    With a wheel, its bytes are put back at every path of the lock, whatever stands there.
    """
    seen = survey(tree, lock)
    if wheel:
        _refuse_wheel(pin, tree, seen, wheel)
    else:
        _refuse_foreign(pin, tree, seen, gone=True)
    patches = pin.patches()

    def wanted(found: Found) -> bytes | None:
        if found.state == APPLIED and found.entry.patches and not wheel:
            return backward(patches, found.entry.path, found.data)
        return _pristine(found.entry, pin, lock, wheel)

    todo = [f for f in seen.found if digest(f.data) != f.entry.pristine or f.link]
    if seen.gutted and not wheel:
        todo = [f for f in todo if f.entry.pristine == ABSENT]
    todo.sort(key=lambda f: _order(f.entry, pin), reverse=True)
    return Plan(seen, _changes(todo, wanted, lambda entry: entry.pristine))


def write(tree: Tree, lock: Lock, plan: Plan) -> None:
    """Write a plan, sweep what killed runs left, and check the result from disk."""
    paths = [*lock.earlier, *(entry.path for entry in lock.entries)]
    disk.clean(tree, paths)
    disk.commit(tree, plan.changes)
    disk.clean(tree, paths)
    for change in plan.changes:
        if tree.read(change.path) != change.new:
            message = f"{change.path} does not hold what was written: is another program at it?"
            raise Refusal(message, Exit.FOREIGN)


def _refuse_unlocked(overlay: Mapping[str, Path], lock: Lock) -> None:
    """A file that no lock knows would be left out without a word."""
    if stray := sorted(overlay.keys() - {entry.path for entry in lock.entries}):
        raise Refusal(f"the lock does not know {', '.join(stray)}: run `make lock`")


def _refuse_foreign(pin: Pin, tree: Tree, seen: Survey, gone: bool = False) -> Survey:
    """Of a tree that sglang was uninstalled from, `gone` accepts that upstream's files are gone."""
    if seen.gutted and not gone:
        message = f"{tree.package} holds no sglang any more: {seen.rest}"
        raise Refusal(message, Exit.FOREIGN)
    rows = [f for f in seen.foreign() if not (seen.gutted and f.entry.pristine != ABSENT)]
    if rows and (other := other_release(tree, pin)):
        raise Refusal(f"{tree.package} {other}; nothing was written", Exit.VERSION)
    if rows:
        listed = "\n".join(map(str, rows))
        raise Refusal(
            f"{listed}\nforeign: {tree.package}: {seen.remedy}; nothing was written", Exit.FOREIGN
        )
    return seen


def _refuse_wheel(pin: Pin, tree: Tree, seen: Survey, wheel: Path) -> None:
    """A wheel is put over edits of the pin's own release, and never through a link."""
    fetch.member(wheel, "")
    if any(seen.foreign()) and (other := other_release(tree, pin)):
        raise Refusal(f"{tree.package} {other}; nothing was written", Exit.VERSION)
    for found in seen.found:
        if found.link and found.link != tree.file(found.entry.path):
            message = f"{found.link} is a symbolic link: replace it by the folder that it points to"
            raise Refusal(message, Exit.FOREIGN)


def _changes(
    todo: list[Found],
    wanted: Callable[[Found], bytes | None],
    target: Callable[[Entry], str],
) -> tuple[Change, ...]:
    changes = []
    for found in todo:
        try:
            new = wanted(found)
        except Mismatch as error:
            raise Refusal(f"{error}: run `make lock`") from None
        if digest(new) != target(found.entry):
            message = f"{found.entry.path} was changed after the lock was written"
            raise Refusal(f"{message}: run `make lock`")
        changes.append(Change(found.entry.path, found.data, new))
    return tuple(changes)


def _pristine(entry: Entry, pin: Pin, lock: Lock, wheel: Path | None = None) -> bytes | None:
    if entry.pristine == ABSENT:
        return None
    source = wheel or fetch.wheel(pin, lock.version, lock.wheels)
    data = fetch.member(source, entry.path)
    if digest(data) != entry.pristine:
        message = f"the wheel's {entry.path} is not the pinned one: take the wheel of the pin"
        raise Refusal(message, Exit.UNAVAILABLE)
    return data


def _order(entry: Entry, pin: Pin) -> tuple[int, str]:
    names = pin.series()
    ranks = [names.index(name) for name in entry.patches if name in names]
    return (max(ranks, default=-1), entry.path)
