"""Patch files: the header, and hunks that are applied exactly where they say, forward or back.

What a patch makes is checked by its hash in the lock, so this reader refuses what it does not know
and leaves the finer points of the format to `git apply`, which the lint asks.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from overlaytool.errors import Refusal

PATH = re.compile(r"sglang(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+")
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?\n")
_FIELD = re.compile(r"([A-Z][A-Za-z-]*):(?: (.*))?")
_NO_NEWLINE = b"\\ No newline at end of file\n"


class Mismatch(Refusal):
    """A patch does not fit the bytes that it is applied to."""


@dataclass(frozen=True)
class Hunk:
    """One hunk: `body` holds (sign, text) pairs, the text with its newline where it has one.

    `line` is where the hunk stands in the patch file; `starts` are the positions, from 0, of its
    old and its new lines in the file.
    """

    line: int
    starts: tuple[int, int]
    body: tuple[tuple[bytes, bytes], ...]

    def without(self, sign: bytes) -> list[bytes]:
        """The lines that the hunk expects (without `+`), or those that it leaves (without `-`)."""
        return [text for mark, text in self.body if mark != sign]

    @property
    def leading(self) -> int:
        """Number of context lines before the first change."""
        return next(n for n, (sign, _) in enumerate(self.body) if sign != b" ")


@dataclass(frozen=True)
class Patch:
    """A patch file: its header fields in order, and the hunks of each path that it changes."""

    name: str
    header: Mapping[str, str]
    files: Mapping[str, Sequence[Hunk]]


def parse_patch(name: str, data: bytes) -> Patch:
    """Read a patch file: `Field: value` header, a line `---`, and a unified diff.

    Raises `Refusal`, with the line, on what is not understood. A patch changes files that exist:
    new ones belong in `overlay/`.
    """
    lines = split(data)
    mark = lines.index(b"---\n") if b"---\n" in lines else -1
    files: dict[str, list[Hunk]] = {}
    header: dict[str, str] = {}
    path, at = "", 0
    try:
        for at in range(mark):
            _field(lines[at].decode().removesuffix("\n"), header)
        at = mark + 1
        while at < len(lines):
            if match := _HUNK.fullmatch(lines[at]):
                hunk, at = _hunk(match, lines, at)
                files[path].append(hunk)
            else:
                path = _path(lines[at : at + 2])
                if path in files or (files and not list(files.values())[-1]):
                    raise ValueError("a file that is changed twice, or not at all")
                files[path], at = [], at + 2
        if not files or not files[path]:
            raise ValueError("the patch changes nothing")
    except (ValueError, IndexError, KeyError) as error:
        at = min(at + 1, len(lines))
        raise Refusal(f"{name}:{at}: not understood: {error}") from None
    return Patch(name, header, files)


def _field(text: str, fields: dict[str, str]) -> None:
    if text.startswith(" ") and fields:
        fields[next(reversed(fields))] += "\n" + text.strip()
    elif (match := _FIELD.fullmatch(text)) and match[1] not in fields:
        fields[match[1]] = match[2] or ""
    else:
        raise ValueError(f"not a header field, or one given twice: {text[:60]!r}")


def _path(lines: Sequence[bytes]) -> str:
    """The path of the two lines that begin a file's part, which have to name the same one."""
    path = lines[0].removeprefix(b"--- a/").removesuffix(b"\n").decode()
    if list(lines) != [f"--- a/{path}\n".encode(), f"+++ b/{path}\n".encode()]:
        raise ValueError(f"no `--- a/PATH` and `+++ b/PATH`: {path[:90]!r}")
    if not PATH.fullmatch(path):
        raise ValueError(f"not a plain path below sglang/: {path[:90]!r}")
    return path


def _hunk(match: re.Match[bytes], lines: Sequence[bytes], at: int) -> tuple[Hunk, int]:
    first, old, start, new = (1 if n is None else int(n) for n in match.groups())
    starts = first - (old > 0), start - (new > 0)
    header, at, body = at + 1, at + 1, []
    while old or new:
        sign, text = lines[at][:1], lines[at][1:]
        old -= sign != b"+"
        new -= sign != b"-"
        if sign not in (b" ", b"+", b"-") or min(old, new) < 0:
            raise ValueError("a hunk that is not as long as it says")
        at += 1
        if lines[at : at + 1] == [_NO_NEWLINE]:
            text, at = text.removesuffix(b"\n"), at + 1
        body.append((sign, text))
    if all(sign == b" " for sign, _ in body):
        raise ValueError("a hunk that changes nothing")
    return Hunk(header, starts, tuple(body)), at


def split(data: bytes) -> list[bytes]:
    """Lines of `data`, ended by LF alone, each with its LF; CR and form feed are plain bytes."""
    lines = data.split(b"\n")
    tail = lines.pop()
    return [line + b"\n" for line in lines] + ([tail] if tail else [])


def forward(patches: Iterable[Patch], path: str, data: bytes | None) -> bytes:
    """Bytes at `path` after the patches, given its bytes before them. Raises `Mismatch`."""
    return _apply(patches, path, data, (b"+", b"-"), 0)


def backward(patches: Iterable[Patch], path: str, data: bytes | None) -> bytes:
    """Bytes at `path` before the patches, given its bytes after them. Raises `Mismatch`."""
    return _apply(reversed(list(patches)), path, data, (b"-", b"+"), 1)


def _apply(
    patches: Iterable[Patch], path: str, data: bytes | None, signs: tuple[bytes, bytes], side: int
) -> bytes:
    if data is None:
        raise Mismatch(f"{path}: the file is absent")
    for patch in patches:
        lines, out, done = split(data), list[bytes](), 0
        for hunk in patch.files.get(path, ()):
            start, wanted = hunk.starts[side], hunk.without(signs[0])
            if start < done or lines[start : start + len(wanted)] != wanted:
                message = f"{path}: line {start + 1} is not what {patch.name}:{hunk.line} expects"
                raise Mismatch(message)
            out += lines[done:start] + hunk.without(signs[1])
            done = start + len(wanted)
        data = b"".join(out + lines[done:])
    return data
