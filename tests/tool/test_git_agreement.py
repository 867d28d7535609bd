"""Parser and applier against `git apply`, both ways, on random files, diffs and damage."""

from __future__ import annotations

import difflib
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from overlaytool.diff import Mismatch, apply, split
from overlaytool.parse import BadPatch, parse_patch

GIT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CEILING_DIRECTORIES": tempfile.gettempdir(),
    "LC_ALL": "C",
}
PATH = "sglang/x.py"

# Few distinct lines, so that blocks repeat and a hunk has more than one place to land on.
lines = st.lists(
    st.sampled_from([b"a", b"b", b"c", b"", b" d", b"-e", b"+f", b"\tg\r"]), max_size=14
)
texts = st.builds(
    lambda body, last: b"\n".join(body) + (b"\n" if last and body else b""), lines, st.booleans()
)


def diff_of(old: bytes, new: bytes) -> bytes:
    out = [b"--- a/sglang/x.py\n", b"+++ b/sglang/x.py\n"]
    body = difflib.diff_bytes(difflib.unified_diff, split(old), split(new), n=3, lineterm=b"\n")
    for line in list(body)[2:]:
        ended = line.endswith(b"\n")
        out.append(line if ended else line + b"\n\\ No newline at end of file\n")
    return b"".join(out)


def git_apply(patch: bytes, old: bytes, *options: str) -> bytes | None:
    """Bytes after `git apply`; `None` where it refuses, or lands anywhere but on the line."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / PATH
        target.parent.mkdir()
        target.write_bytes(old)
        command = ["git", "apply", "-v", "--whitespace=nowarn", *options, "-"]
        run = subprocess.run(command, cwd=folder, input=patch, capture_output=True, env=GIT)
        refused = run.returncode != 0 or b"offset" in run.stderr
        return None if refused else target.read_bytes()


def ours(patch: bytes, old: bytes, reverse: bool = False) -> bytes | None:
    try:
        (file,) = parse_patch("x.patch", patch).files
        return apply(file.reversed() if reverse else file, old)
    except (BadPatch, Mismatch):
        return None


@settings(max_examples=120, deadline=None)
@given(texts, texts)
def test_both_ways_of_a_random_diff_agree(old: bytes, new: bytes) -> None:
    if old == new:
        return
    patch = diff_of(old, new)
    assert ours(patch, old) == new
    assert ours(patch, new, reverse=True) == old
    assert git_apply(patch, old) == new
    assert git_apply(patch, new, "-R") == old


@settings(max_examples=120, deadline=None)
@given(texts, texts, texts)
def test_on_another_file_git_refuses_what_we_refuse_and_gives_what_we_give(
    old: bytes, new: bytes, other: bytes
) -> None:
    if old == new:
        return
    patch = diff_of(old, new)
    result = ours(patch, other)
    # git takes a context line without newline for the beginning of a longer text, and joins them.
    if result is not None or b"\\ No newline" not in patch:
        assert result == git_apply(patch, other)


@settings(max_examples=120, deadline=None)
@given(texts, texts, st.data())
def test_what_we_accept_of_a_damaged_patch_git_accepts_alike(
    old: bytes, new: bytes, data: st.DataObject
) -> None:
    if old == new:
        return
    broken = split(diff_of(old, new))
    at = data.draw(st.integers(2, len(broken) - 1))
    damage = data.draw(st.sampled_from(["drop", "repeat", "blank", "sign", "cut"]))
    line = broken[at]
    broken[at : at + 1] = {
        "drop": [],
        "repeat": [line, line],
        "blank": [b"\n"],
        "sign": [b"-" + line[1:]],
        "cut": [line[: len(line) // 2]],
    }[damage]
    result = ours(b"".join(broken), old)
    if result is not None:
        assert git_apply(b"".join(broken), old) == result
