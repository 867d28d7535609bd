"""The state of a tree, computed from the content at the lock's paths and from nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from overlaytool.errors import Exit, Refusal
from overlaytool.lock import ABSENT, SHORT, Entry, Lock, digest
from overlaytool.tree import PACKAGE, Tree

PRISTINE, APPLIED, PARTIAL = "pristine", "applied", "partial"
EARLIER, FOREIGN = "earlier", "foreign"
# A path of an earlier revision that this one leaves alone says nothing about the tree.
_UNTOUCHED = "untouched"
_EXITS = {PARTIAL: Exit.PARTIAL, EARLIER: Exit.PARTIAL, FOREIGN: Exit.FOREIGN}


@dataclass(frozen=True)
class Found:
    """What stands at one path of the lock; `link` is a symbolic link on the way to it."""

    entry: Entry
    data: bytes | None
    link: Path | None = None

    @property
    def state(self) -> str:
        """`pristine`, `applied`, `earlier`, `foreign`, or `untouched`."""
        found = digest(self.data)
        if self.link:
            return FOREIGN
        if found == self.entry.applied:
            return _UNTOUCHED if found == self.entry.pristine else APPLIED
        if found == self.entry.pristine:
            return PRISTINE
        return EARLIER if found[:SHORT] in self.entry.earlier else FOREIGN

    def __str__(self) -> str:
        if self.state != FOREIGN:
            return f"{self.state:<9}  {self.entry.path}"
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
        states = {found.state for found in self.found} - {_UNTOUCHED}
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

    def foreign(self) -> Iterator[Found]:
        """The paths that are neither pristine nor applied."""
        return (found for found in self.found if found.state == FOREIGN)


def survey(tree: Tree, lock: Lock) -> Survey:
    """Read every path of the lock; a link is not followed.

    Raises `Refusal` (5) where the tree states another version than the lock, whatever it holds.
    """
    stated = tree.version()
    if stated is not None and stated.split("+")[0] != lock.version:
        raise Refusal(
            f"{tree.package} states {PACKAGE} {stated}, the pin is {lock.version}: "
            "name the pin of that release with --pin, or another tree",
            Exit.VERSION,
        )
    found = []
    for entry in lock.entries:
        link = tree.link(entry.path)
        found.append(Found(entry, None if link else tree.read(entry.path), link))
    return Survey(tuple(found), _gutted(tree, found))


def _gutted(tree: Tree, found: list[Found]) -> bool:
    """Whether sglang was uninstalled from under the overlay: only files of ours are left."""
    upstream = [f for f in found if f.entry.pristine != ABSENT]
    return not (tree.package / "__init__.py").exists() and all(f.data is None for f in upstream)
