"""Writing patches: hunks at new places, hunks of an edited file, and the patch file's bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from overlaytool.diff import FilePatch, Hunk, Kind, split

CONTEXT = 3
_DEV_NULL = b"/dev/null"


def at(file: FilePatch, starts: Sequence[int]) -> FilePatch:
    """The same hunks with their old sides at `starts`, counted from 0."""
    hunks, shift = [], 0
    for hunk, start in zip(file.hunks, starts, strict=True):
        hunks.append(_hunk(start, start + shift, hunk.body))
        shift += len(hunk.new) - len(hunk.old)
    return replace(file, hunks=tuple(hunks))


def between(path: str, old: bytes | None, new: bytes | None) -> FilePatch | None:
    """The change from `old` to `new`, None where there is none."""
    if old == new:
        return None
    a, b = split(old or b""), split(new or b"")
    groups = SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(CONTEXT)
    kind: Kind = "add" if old is None else "delete" if new is None else "modify"
    return FilePatch(path, kind, tuple(_grouped(group, a, b) for group in groups))


def _grouped(
    group: Iterable[tuple[str, int, int, int, int]], a: list[bytes], b: list[bytes]
) -> Hunk:
    steps, body = list(group), []
    for tag, i1, i2, j1, j2 in steps:
        if tag == "equal":
            body += [(" ", line) for line in a[i1:i2]]
        else:
            body += [("-", line) for line in a[i1:i2]] + [("+", line) for line in b[j1:j2]]
    return _hunk(steps[0][1], steps[0][3], tuple(body))


def _hunk(old_index: int, new_index: int, body: tuple[tuple[str, bytes], ...]) -> Hunk:
    """A hunk from positions counted from 0; an empty side names the line before it."""
    empty_old = all(sign == "+" for sign, _ in body)
    empty_new = all(sign == "-" for sign, _ in body)
    return Hunk(0, old_index + (not empty_old), new_index + (not empty_new), body)


def patch_bytes(original: bytes, release: str, files: Iterable[FilePatch]) -> bytes:
    """A patch file with the original's header, rebased to `release`, and these changes."""
    header = []
    for line in split(original):
        if line == b"---\n" or line.startswith(b"--- "):
            break
        stale = line.startswith(b"Last-Rebased:")
        header.append(f"Last-Rebased: sglang {release}\n".encode() if stale else line)
    return b"".join([*header, b"---\n", *(part for file in files for part in _file(file))])


def _file(file: FilePatch) -> list[bytes]:
    old = _DEV_NULL if file.kind == "add" else b"a/" + file.path.encode()
    new = _DEV_NULL if file.kind == "delete" else b"b/" + file.path.encode()
    parts = [b"--- " + old + b"\n", b"+++ " + new + b"\n"]
    for hunk in file.hunks:
        sides = (hunk.old_start, len(hunk.old), hunk.new_start, len(hunk.new))
        parts.append(b"@@ -%d,%d +%d,%d @@\n" % sides)
        parts += [sign.encode() + _ended(text) for sign, text in hunk.body]
    return parts


def _ended(text: bytes) -> bytes:
    return text if text.endswith(b"\n") else text + b"\n\\ No newline at end of file\n"
