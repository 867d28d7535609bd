"""Strict reader of patch files: whatever it does not fully understand is refused, with the line."""

import re
from collections.abc import Sequence

from overlaytool.diff import FilePatch, Hunk, Kind, Patch, split
from overlaytool.errors import Exit, Refusal

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?\n")
_FIELD = re.compile(r"([A-Z][A-Za-z]*(?:-[A-Za-z]+)*):(?: (.*))?")
_PATH = re.compile(rb"sglang(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+")
_GIT_LINES = re.compile(
    rb"diff --git a/\S+ b/\S+\n|index [0-9a-f]+\.\.[0-9a-f]+(?: 100644)?\n"
    rb"|(?:new|deleted) file mode 100644\n"
)
_NO_NEWLINE = b"\\ No newline at end of file\n"


class BadPatch(Refusal):
    """A patch file is malformed, or does what patches here may not do."""

    def __init__(self, name: str, line: int, message: str) -> None:
        super().__init__(f"{name}:{line}: {message}", Exit.FAILED)


def parse_patch(name: str, data: bytes) -> Patch:
    """Read a patch file: `Field: value` header, a line `---`, and a unified diff.

    A file without the line `---` has an empty header. Raises `BadPatch`.
    """
    lines = split(data)
    if lines and not lines[-1].endswith(b"\n"):
        raise BadPatch(name, len(lines), "the last line has no newline; the file may be truncated")
    start = next((n for n, line in enumerate(lines) if line.startswith((b"--- ", b"diff "))), 0)
    mark = next((n for n, line in enumerate(lines[:start]) if line == b"---\n"), -1)
    header = _parse_header(name, lines[: max(mark, 0)])
    return Patch(name, header, _Reader(name, lines, mark + 1).files())


def _parse_header(name: str, lines: Sequence[bytes]) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode().removesuffix("\n")
        except UnicodeDecodeError:
            raise BadPatch(name, number, "the header is not UTF-8") from None
        if text.startswith(" ") and key:
            fields[key] += "\n" + text.strip()
        elif (match := _FIELD.fullmatch(text)) and match[1] not in fields:
            key = match[1]
            fields[key] = match[2] or ""
        else:
            raise BadPatch(name, number, f"not a header field, or one given twice: {text[:60]!r}")
    return fields


class _Reader:
    """Cursor over the lines of the diff."""

    def __init__(self, name: str, lines: Sequence[bytes], at: int) -> None:
        self.name, self.lines, self.at = name, lines, at

    def bad(self, message: str) -> BadPatch:
        return BadPatch(self.name, self.at + 1, message)

    def peek(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def take(self) -> bytes:
        line = self.peek()
        self.at += 1
        return line

    def files(self) -> tuple[FilePatch, ...]:
        found: dict[str, FilePatch] = {}
        while self.at < len(self.lines):
            file = self.file()
            if file.path in found:
                raise self.bad(f"{file.path} is changed twice by one patch")
            found[file.path] = file
        if not found:
            raise self.bad("no change found")
        return tuple(found.values())

    def file(self) -> FilePatch:
        while _GIT_LINES.fullmatch(self.peek()):
            self.take()
        old = self.path(b"--- ", b"a/")
        new = self.path(b"+++ ", b"b/")
        if old != new and old and new:
            raise self.bad(f"renames are not supported: {old} -> {new}")
        if not old and not new:
            raise self.bad("/dev/null on both sides")
        kind: Kind = "modify" if old and new else "add" if new else "delete"
        hunks = self.hunks(kind)
        return FilePatch(new or old, kind, hunks)

    def path(self, mark: bytes, prefix: bytes) -> str:
        line = self.peek()
        if not line.startswith(mark):
            shown = line.decode(errors="replace").strip()[:60]
            raise self.bad(f"expected '{mark.decode()}' and a path, found {shown!r}")
        if line == mark + b"/dev/null\n":
            self.take()
            return ""
        path = line.removeprefix(mark + prefix).removesuffix(b"\n")
        if line != mark + prefix + path + b"\n" or not _PATH.fullmatch(path):
            shown = line.decode(errors="replace").rstrip("\n")[:90]
            raise self.bad(f"not a plain path under {prefix.decode()}sglang/: {shown!r}")
        self.take()
        return path.decode()

    def hunks(self, kind: Kind) -> tuple[Hunk, ...]:
        found: list[Hunk] = []
        shift = end = 0
        while self.peek().startswith(b"@@"):
            hunk = self.hunk()
            new_index = hunk.new_start - 1 if hunk.new else hunk.new_start
            if hunk.index < end or new_index != hunk.index + shift:
                self.at = hunk.line - 1
                raise self.bad("hunks overlap, are out of order, or their starts disagree")
            end = hunk.index + len(hunk.old)
            shift += len(hunk.new) - len(hunk.old)
            found.append(hunk)
        if not found:
            raise self.bad("a file without hunks, or with a mode, link, rename or binary change")
        whole = len(found) == 1 and (not found[0].old if kind == "add" else not found[0].new)
        if kind != "modify" and not whole:
            raise self.bad(f"/dev/null needs one hunk that makes the whole file to {kind}")
        return tuple(found)

    def hunk(self) -> Hunk:
        line = self.at + 1
        match = _HUNK.fullmatch(self.peek())
        if not match:
            raise self.bad("malformed hunk header")
        self.take()
        old_start, old, new_start, new = (1 if n is None else int(n) for n in match.groups())
        body = self.body(old, new)
        if all(sign == " " for sign, _ in body):
            raise self.bad("a hunk that changes nothing")
        if (old and not old_start) or (new and not new_start):
            raise self.bad("line 0 in the header of a hunk that is not empty there")
        return Hunk(line, old_start, new_start, body)

    def body(self, old: int, new: int) -> tuple[tuple[str, bytes], ...]:
        lines: list[tuple[str, bytes]] = []
        while old or new:
            line = self.peek()
            sign = line[:1].decode(errors="replace")
            if line == b"\n":
                raise self.bad("a context line lost its leading space")
            if not sign or sign not in " +-":
                raise self.bad("the hunk is shorter than its header says")
            old -= sign != "+"
            new -= sign != "-"
            if min(old, new) < 0:
                raise self.bad("the hunk is longer than its header says")
            self.take()
            lines.append((sign, self.text(line[1:], sign, old, new)))
        return tuple(lines)

    def text(self, text: bytes, sign: str, old: int, new: int) -> bytes:
        if self.peek() != _NO_NEWLINE:
            return text
        if (sign != "+" and old) or (sign != "-" and new):
            raise self.bad("'No newline' in the middle of a hunk")
        self.take()
        return text.removesuffix(b"\n")
