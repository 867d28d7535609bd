"""Carrying a series of patches to another tree with git, each with a verdict on what it met."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from overlaytool.contract.symbols import Read
from overlaytool.patch import Patch, split

from carrytool.git import git


class Verdict(StrEnum):
    """What became of a patch; later members are worse."""

    CLEAN = "clean"
    MOVED = "moved"
    RESOLVED = "resolved"
    DROPPED = "dropped"
    UPSTREAMED = "upstreamed"
    MERGED = "merged"
    AMBIGUOUS = "ambiguous"
    CONFLICT = "conflict"
    GONE = "target gone"
    BLOCKED = "blocked"


_ORDER = list(Verdict)
LANDS = frozenset({Verdict.CLEAN, Verdict.MOVED, Verdict.RESOLVED, Verdict.DROPPED})
FAILS = frozenset({Verdict.AMBIGUOUS, Verdict.CONFLICT, Verdict.GONE, Verdict.BLOCKED})
_LESS_CONTEXT = ("-C2", "-C1")


@dataclass(frozen=True)
class CarriedFile:
    """One file of a patch on the target; `review` is text for a person to look at.

    That is the merged file, or the hunks that found no place.
    """

    path: str
    verdict: Verdict
    note: str = ""
    review: bytes | None = None


@dataclass(frozen=True)
class CarriedPatch:
    """A patch on the target; `diff` is its unified diff there, where it has settled."""

    name: str
    verdict: Verdict
    files: tuple[CarriedFile, ...] = ()
    diff: bytes = b""


class Carrier:
    """Carries patches in order, each seen with those before it applied.

    The folder has the target's files before (`a`) and after (`b`) the patch at hand.
    """

    def __init__(self, folder: Path, target: Read) -> None:
        self._read, self._before, self._after = target, folder / "a", folder / "b"
        self._broken: dict[str, str] = {}

    def carry(self, patch: Patch, file: Path) -> CarriedPatch:
        """The patch of this file on the target, found by its context."""
        self._lay_out(patch.files)
        found = tuple(self._file(patch, path, file) for path in patch.files)
        worst = max((one.verdict for one in found), key=_ORDER.index)
        if worst in FAILS:
            self._broken = {**dict.fromkeys(patch.files, patch.name), **self._broken}
            shutil.rmtree(self._after)
            shutil.copytree(self._before, self._after)
        return CarriedPatch(patch.name, worst, found, self._settle() if worst in LANDS else b"")

    def resolve(self, patch: Patch, edited: Mapping[str, bytes]) -> CarriedPatch:
        """The patch replaced by the files as a person edited them for the target."""
        self._lay_out(edited)
        for path, content in edited.items():
            _write(self._after / path, content)
        files = tuple(CarriedFile(path, Verdict.RESOLVED) for path in sorted(edited))
        return CarriedPatch(patch.name, Verdict.RESOLVED, files, self._settle())

    def _lay_out(self, paths: Iterable[str]) -> None:
        shutil.copytree(self._after, self._before, dirs_exist_ok=True)
        for path in paths:
            content = None if (self._after / path).exists() else self._read(path)
            if content is not None:
                _write(self._before / path, content)
                _write(self._after / path, content)

    def _settle(self) -> bytes:
        """The unified diff of the patch at hand, without the lines that only git reads."""
        names = (self._before.name, self._after.name)
        made = git(self._after.parent, "diff", "--no-index", "--no-prefix", *names).stdout
        return b"".join(n for n in split(made) if not n.startswith((b"diff --git ", b"index ")))

    def _file(self, patch: Patch, path: str, file: Path) -> CarriedFile:
        target, only = self._after / path, (f"--include={path}", str(file))
        if path in self._broken:
            return CarriedFile(path, Verdict.BLOCKED, f"by {self._broken[path]}")
        if not target.exists():
            return CarriedFile(path, Verdict.GONE, "the target has no such file")
        if not git(self._after, "apply", "--check", "--reverse", *only).returncode:
            return CarriedFile(path, Verdict.UPSTREAMED, "the reversed patch applies")
        if where := _places(patch, path, target.read_bytes()):
            return CarriedFile(path, Verdict.AMBIGUOUS, f"the context stands at lines {where}")
        done = git(self._after, "apply", "--verbose", *only)
        if not done.returncode:
            moved = re.findall(rb"offset (-?\d+) line", done.stderr)
            note = ", ".join(f"{int(offset):+d}" for offset in moved)
            return CarriedFile(path, Verdict.MOVED if moved else Verdict.CLEAN, note)
        for context in _LESS_CONTEXT:
            if not git(self._after, "apply", context, *only).returncode:
                return CarriedFile(path, Verdict.MERGED, "for review", target.read_bytes())
        git(self._after, "apply", "--reject", *only)
        rejected = target.with_name(f"{target.name}.rej").read_bytes()
        note = f"{rejected.count(b'@@ -')} of {len(patch.files[path])} hunks find no place"
        return CarriedFile(path, Verdict.CONFLICT, note, rejected)


@contextmanager
def carrier(target: Read) -> Iterator[Carrier]:
    """A carrier with a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for side in ("a", "b"):
            (Path(folder) / side).mkdir()
        yield Carrier(Path(folder), target)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _places(patch: Patch, path: str, content: bytes) -> str:
    """The lines where the context of a hunk stands, if it does in several places but its own."""
    lines = split(content)
    for hunk in patch.files[path]:
        old = hunk.without(b"+")
        starts = [n for n in range(len(lines)) if lines[n : n + len(old)] == old]
        if len(starts) > 1 and hunk.starts[0] not in starts:
            return ", ".join(str(start + 1) for start in starts)
    return ""
