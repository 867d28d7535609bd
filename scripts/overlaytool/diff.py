"""Unified diffs on bytes: what a patch changes, applied at fuzz 0 and offset 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from overlaytool.errors import Exit, Refusal

Kind = Literal["add", "modify", "delete"]
_SWAPPED = {" ": " ", "+": "-", "-": "+"}
_REVERSED: dict[Kind, Kind] = {"add": "delete", "modify": "modify", "delete": "add"}


class Mismatch(Refusal):
    """A hunk does not fit the bytes that it is applied to."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.FAILED)


@dataclass(frozen=True)
class Hunk:
    """One hunk: `body` holds (sign, text) pairs, the text with its newline where it has one.

    `line` is where the hunk stands in the patch file; `old_start` and `new_start` count from 1,
    and name the line before the hunk where that side is empty, as unified diffs do.
    """

    line: int
    old_start: int
    new_start: int
    body: tuple[tuple[str, bytes], ...]

    @property
    def old(self) -> list[bytes]:
        """The lines that the hunk expects."""
        return [text for sign, text in self.body if sign != "+"]

    @property
    def new(self) -> list[bytes]:
        """The lines that the hunk leaves."""
        return [text for sign, text in self.body if sign != "-"]

    @property
    def index(self) -> int:
        """Position of the first old line, from 0."""
        return self.old_start - 1 if self.old else self.old_start

    def reversed(self) -> "Hunk":
        """The hunk that undoes this one."""
        body = tuple((_SWAPPED[sign], text) for sign, text in self.body)
        return Hunk(self.line, self.new_start, self.old_start, body)


@dataclass(frozen=True)
class FilePatch:
    """All hunks of one patch for one file; `path` begins with `sglang/`."""

    path: str
    kind: Kind
    hunks: tuple[Hunk, ...]

    def reversed(self) -> "FilePatch":
        """The change that undoes this one."""
        hunks = tuple(hunk.reversed() for hunk in self.hunks)
        return replace(self, kind=_REVERSED[self.kind], hunks=hunks)

    def count(self, sign: Literal["+", "-"]) -> int:
        """Number of lines added (`+`) or removed (`-`)."""
        return sum(mark == sign for hunk in self.hunks for mark, _ in hunk.body)


@dataclass(frozen=True)
class Patch:
    """A patch file: its header fields in order, and the files it changes."""

    name: str
    header: Mapping[str, str]
    files: tuple[FilePatch, ...]


def split(data: bytes) -> list[bytes]:
    """Lines of `data`, ended by LF alone, each with its LF; CR and form feed are plain bytes."""
    lines = data.split(b"\n")
    tail = lines.pop()
    return [line + b"\n" for line in lines] + ([tail] if tail else [])


def matches(hunk: Hunk, lines: Sequence[bytes], start: int) -> bool:
    """Whether the hunk's old side stands at `start`; without trailing context it ends the file."""
    end = start + len(hunk.old)
    ends_file = end == len(lines)
    return list(lines[start:end]) == hunk.old and (hunk.body[-1][0] == " " or ends_file)


def places(hunk: Hunk, lines: Sequence[bytes]) -> list[int]:
    """Every position, from 0, where the hunk's old side stands in `lines`."""
    last = len(lines) - len(hunk.old)
    return [start for start in range(last + 1) if matches(hunk, lines, start)]


def apply(file: FilePatch, data: bytes | None) -> bytes | None:
    """Bytes of the file after the patch, `None` standing for a file that is absent.

    Raises:
        Mismatch: `data` is not exactly what the hunks expect, where they expect it.
    """
    if (data is None) != (file.kind == "add"):
        raise Mismatch(f"{file.path}: the file {'is absent' if data is None else 'exists already'}")
    out = _apply_hunks(file, split(data or b""))
    if any(not line.endswith(b"\n") for line in out[:-1]):
        raise Mismatch(f"{file.path}: a line without newline would end up inside the file")
    if file.kind != "delete":
        return b"".join(out)
    if out:
        raise Mismatch(f"{file.path}: the patch deletes the file but not all of its lines")
    return None


def _apply_hunks(file: FilePatch, lines: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    done = 0
    for hunk in file.hunks:
        if not matches(hunk, lines, hunk.index):
            raise Mismatch(
                f"{file.path}: the hunk at line {hunk.line} of the patch does not fit "
                f"line {hunk.index + 1} of the file"
            )
        out += lines[done : hunk.index] + hunk.new
        done = hunk.index + len(hunk.old)
    return out + lines[done:]
