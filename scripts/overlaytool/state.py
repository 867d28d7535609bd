"""The state of a tree, computed from the content at the lock's paths and from nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from overlaytool.errors import Exit
from overlaytool.lock import ABSENT, SHORT, Entry, Lock, digest
from overlaytool.pin import Pin, known
from overlaytool.tree import PACKAGE, Tree

PRISTINE, APPLIED, PARTIAL = "pristine", "applied", "partial"
EARLIER, FOREIGN = "earlier", "foreign"
_EXITS = {PARTIAL: Exit.PARTIAL, EARLIER: Exit.PARTIAL, FOREIGN: Exit.FOREIGN}


@dataclass(frozen=True)
class Found:
    """What stands at one path of the lock; `link` is a symbolic link on the way to it.

    `state` is `pristine`, `applied`, `earlier` or `foreign`.
    """

    entry: Entry
    state: str
    data: bytes | None
    link: Path | None = None

    @property
    def retired(self) -> bool:
        """Whether this revision leaves the path to upstream."""
        return self.entry.applied == self.entry.pristine

    @property
    def word(self) -> str:
        """The state, or `absent` where a file of ours is not there."""
        absent = self.state == PRISTINE and self.entry.pristine == ABSENT
        return ABSENT if absent else self.state

    def __str__(self) -> str:
        if self.state != FOREIGN:
            return f"{self.word:<9}  {self.entry.path}"
        wanted = f"pristine {self.entry.pristine[:SHORT]}, applied {self.entry.applied[:SHORT]}"
        found = f"a symbolic link, {self.link}" if self.link else digest(self.data)[:SHORT]
        return f"{self.state:<9}  {self.entry.path}  found {found}; {wanted}"


@dataclass(frozen=True)
class Survey:
    """All paths of the lock as they stand in one tree."""

    found: tuple[Found, ...]
    gutted: bool

    @property
    def state(self) -> str:
        """`pristine`, `applied`, `partial`, `earlier` or `foreign`."""
        states = {found.state for found in self.found}
        for worst in (FOREIGN, EARLIER):
            if worst in states:
                return worst
        return PARTIAL if len(states) > 1 else next(iter(states), PRISTINE)

    @property
    def code(self) -> Exit:
        """The exit code of `status`."""
        return _EXITS.get(self.state, Exit.OK)

    @property
    def rest(self) -> str:
        """What to do where sglang was uninstalled: pip leaves the empty folders of its wheel."""
        if any(found.data is not None for found in self.found):
            return "unapply removes the overlay's rest"
        return "nothing of the overlay is left, install sglang again or delete the folder"

    @property
    def remedy(self) -> str:
        """What to do about the foreign files."""
        if any(found.link and found.link.is_file() for found in self.foreign()):
            return "its files are links: name the folder that they lead to with --tree"
        return "put them back, or use `scripts/overlay unapply --from-wheel FILE`"

    def foreign(self) -> Iterator[Found]:
        """The paths that hold neither upstream's file nor one of ours."""
        return (found for found in self.found if found.state == FOREIGN)


def survey(tree: Tree, lock: Lock) -> Survey:
    """Read every path of the lock and those that earlier revisions wrote; no link is followed.

    Content decides: a tree's files may be a pin's, whatever version the tree states.
    """
    found = [_look(tree, lock, entry) for entry in lock.entries]
    gone = lock.earlier.keys() - {entry.path for entry in lock.entries}
    found += [old for path in sorted(gone) if (old := _retired(tree, lock, path))]
    return Survey(tuple(found), _gutted(tree, found))


def other_release(tree: Tree, pin: Pin) -> str | None:
    """What to say where a tree holds another release than the pin: by its bytes, else its word.

    The version of a checkout between two releases (`0.5.24.dev12`) says nothing about its files.
    """
    pins = known(pin.repository)
    for other in (Pin(pin.repository, name) for name in pins if name != pin.release):
        patched = [entry for entry in other.lock().entries if entry.patches]
        if patched and all(digest(tree.read(e.path)) in (e.pristine, e.applied) for e in patched):
            return f"holds {PACKAGE} {other.release}: use --pin {other.release}"
    stated = (tree.version() or pin.release).split("+")[0]
    if stated == pin.release or "dev" in stated:
        return None
    remedy = (
        f"use --pin {stated}"
        if stated in pins
        else f"the pins are {', '.join(pins)}, named by --pin"
    )
    return f"states {PACKAGE} {stated}, the pin is {pin.release}: {remedy}"


def _look(tree: Tree, lock: Lock, entry: Entry) -> Found:
    link = tree.link(entry.path)
    if link:
        return Found(entry, FOREIGN, None, link)
    data = tree.read(entry.path)
    states = {entry.pristine: PRISTINE, entry.applied: APPLIED}
    ours = lock.earlier.get(entry.path, {}).get(digest(data)[:SHORT]) == entry.pristine
    return Found(entry, states.get(digest(data), EARLIER if ours else FOREIGN), data)


def _retired(tree: Tree, lock: Lock, path: str) -> Found | None:
    """A file that an earlier revision left where this one writes none.

    Unknown bytes are an edit of ours where upstream has no file, and upstream's own elsewhere.
    """
    rows, link = lock.earlier[path], tree.link(path)
    data = None if link else tree.read(path)
    if pristine := rows.get(digest(data)[:SHORT]):
        return Found(Entry(path, pristine, pristine), EARLIER, data)
    edited = (data is not None or link) and set(rows.values()) == {ABSENT}
    return Found(Entry(path, ABSENT, ABSENT), FOREIGN, data, link) if edited else None


def _gutted(tree: Tree, found: list[Found]) -> bool:
    """Whether sglang was uninstalled from under the overlay: only files of ours are left."""
    upstream = [f for f in found if f.entry.pristine != ABSENT]
    return not (tree.package / "__init__.py").exists() and all(f.data is None for f in upstream)
