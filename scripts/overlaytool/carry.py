"""Carrying a series of patches to another tree, each with a verdict that names what it met."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from overlaytool import refresh
from overlaytool.diff import FilePatch, Patch, apply, places, split
from overlaytool.diff import matches as fits
from overlaytool.merge import three_way
from overlaytool.symbols import Read


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


@dataclass(frozen=True)
class CarriedFile:
    """One file of a patch on the target.

    `after` is the target's file with the change (None where it is deleted or undecided), `diff`
    the change as it applies there. `review` is text for a person: diff3 markers, or a merge.
    """

    path: str
    verdict: Verdict
    note: str = ""
    function: str = ""
    after: bytes | None = None
    diff: FilePatch | None = None
    review: bytes | None = None


@dataclass(frozen=True)
class CarriedPatch:
    name: str
    verdict: Verdict
    files: tuple[CarriedFile, ...]


class Carrier:
    """Carries patches in order; both trees are seen with the patches before applied.

    `labels` name the target and the pin in conflict markers.
    """

    def __init__(self, pin: Read, target: Read, labels: tuple[str, str]) -> None:
        self._reads = {"pin": pin, "target": target}
        self._written: dict[str, dict[str, bytes | None]] = {"pin": {}, "target": {}}
        self._broken: dict[str, str] = {}
        self._labels = labels

    def _read(self, side: str, path: str) -> bytes | None:
        written = self._written[side]
        return written[path] if path in written else self._reads[side](path)

    def carry(self, patch: Patch) -> CarriedPatch:
        """The patch on the target, found by its context and, failing that, by a merge."""
        files = tuple(self._file(patch.name, file) for file in patch.files)
        worst = max((file.verdict for file in files), key=_ORDER.index)
        self._advance(patch, files, worst in FAILS)
        return CarriedPatch(patch.name, worst, files)

    def drop(self, patch: Patch) -> CarriedPatch:
        """The patch left out on the target."""
        self._advance(patch, (), failed=False)
        return CarriedPatch(patch.name, Verdict.DROPPED, ())

    def resolve(self, patch: Patch, edited: Mapping[str, bytes]) -> CarriedPatch:
        """The patch replaced by the files as a person edited them for the target."""
        files = []
        for path, after in sorted(edited.items()):
            diff = refresh.between(path, self._read("target", path), after)
            if diff is not None:
                files.append(CarriedFile(path, Verdict.RESOLVED, after=after, diff=diff))
        self._advance(patch, files, failed=False)
        return CarriedPatch(patch.name, Verdict.RESOLVED, tuple(files))

    def _advance(self, patch: Patch, files: Sequence[CarriedFile], failed: bool) -> None:
        for file in patch.files:
            self._written["pin"][file.path] = apply(file, self._read("pin", file.path))
            if failed:
                self._broken.setdefault(file.path, patch.name)
        for carried in () if failed else files:
            self._written["target"][carried.path] = carried.after

    def _file(self, patch: str, file: FilePatch) -> CarriedFile:
        if file.path in self._broken:
            return CarriedFile(file.path, Verdict.BLOCKED, f"by {self._broken[file.path]}")
        base, ours = self._read("pin", file.path), self._read("target", file.path)
        theirs = apply(file, base)
        if ours == theirs:
            return CarriedFile(file.path, Verdict.UPSTREAMED, after=ours)
        if file.kind == "add":
            if ours is None:
                return CarriedFile(file.path, Verdict.CLEAN, after=theirs, diff=file)
            return CarriedFile(file.path, Verdict.CONFLICT, "the target has a file of that name")
        if ours is None or base is None:
            return CarriedFile(file.path, Verdict.GONE, "the target has no such file")
        return _placed(file, ours) or self._merged(patch, file, (ours, base, theirs or b""))

    def _merged(
        self, patch: str, file: FilePatch, sides: tuple[bytes, bytes, bytes]
    ) -> CarriedFile:
        ours, base, _ = sides
        target, pin = self._labels
        merge = three_way(*sides, (target, pin, patch))
        function = ", ".join(_functions(file, base, ours))
        if merge.conflicts:
            note = f"{merge.conflicts} in the merge"
            return CarriedFile(
                file.path, Verdict.CONFLICT, note, function=function, review=merge.text
            )
        if merge.text == ours:
            return CarriedFile(file.path, Verdict.UPSTREAMED, "merges to no change", after=ours)
        if not _parses(file.path, merge.text):
            note = "merges, but the result does not parse"
            return CarriedFile(
                file.path, Verdict.CONFLICT, note, function=function, review=merge.text
            )
        diff = refresh.between(file.path, ours, merge.text)
        return CarriedFile(
            file.path, Verdict.MERGED, "for review", function, merge.text, diff, merge.text
        )


def _placed(file: FilePatch, ours: bytes) -> CarriedFile | None:
    """Where the hunks' context stands in the target; None where some context is not there."""
    lines = split(ours)
    undone = file.reversed()
    if all(places(hunk, lines) for hunk in undone.hunks):
        return CarriedFile(file.path, Verdict.UPSTREAMED, "the reversed patch applies", after=ours)
    found = [
        [hunk.index] if fits(hunk, lines, hunk.index) else places(hunk, lines)
        for hunk in file.hunks
    ]
    if not all(found):
        return None
    if any(len(starts) > 1 for starts in found):
        where = max(found, key=len)
        note = f"the context stands at lines {', '.join(str(start + 1) for start in where)}"
        return CarriedFile(file.path, Verdict.AMBIGUOUS, note)
    starts = [start for (start,) in found]
    if starts != sorted(starts):
        return None
    offsets = [start - hunk.index for start, hunk in zip(starts, file.hunks, strict=True)]
    diff = refresh.at(file, starts)
    moved = Verdict.MOVED if any(offsets) else Verdict.CLEAN
    note = ", ".join(f"{offset:+d}" for offset in offsets) if any(offsets) else ""
    return CarriedFile(file.path, moved, note, after=apply(diff, ours), diff=diff)


def _functions(file: FilePatch, base: bytes, ours: bytes) -> list[str]:
    """The functions of the pin's file in which context no longer stands in the target."""
    lines = split(ours)
    lost = [hunk for hunk in file.hunks if not places(hunk, lines)]
    names = [enclosing(base, hunk.index + max(_first_change(hunk.body), 1)) for hunk in lost]
    return list(dict.fromkeys(names))


def _first_change(body: tuple[tuple[str, bytes], ...]) -> int:
    return next(i for i, (sign, _) in enumerate(body) if sign != " ")


def enclosing(source: bytes, line: int) -> str:
    """Dotted name of the innermost class or function around a line, counted from 1."""
    try:
        node: ast.AST = ast.parse(source)
    except (SyntaxError, ValueError):
        return "(does not parse)"
    names: list[str] = []
    while inner := next((child for child in _scopes(node) if _holds(child, line)), None):
        names.append(inner.name)
        node = inner
    return ".".join(names) or "(module)"


def _scopes(node: ast.AST) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [n for n in ast.walk(node) if n is not node and isinstance(n, kinds)]


def _holds(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _parses(path: str, source: bytes) -> bool:
    if not path.endswith(".py"):
        return True
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True
