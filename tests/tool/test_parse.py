"""The reader of patch files, and hunks applied both ways, with git as the judge."""

from __future__ import annotations

import difflib
import tempfile
from pathlib import Path

import pytest
from carrytool.git import git
from hypothesis import given, settings
from hypothesis import strategies as st
from overlaytool.errors import Refusal
from overlaytool.patch import Mismatch, backward, forward, parse_patch, split

from tests.tool import toy as toys

PATH = "sglang/x.py"
FILE = f"--- a/{PATH}\n+++ b/{PATH}\n"
HUNK = "@@ -1,3 +1,4 @@\n a\n b\n c\n+d\n"


def test_header_fields_continue_on_indented_lines() -> None:
    patch = parse_patch("x.patch", toys.REGISTRY_PATCH.encode())
    assert list(patch.header)[:2] == ["Description", "Why-not-a-plugin"]
    assert patch.header["Description"] == "one concern\ntold in full on a second line"
    assert list(patch.files) == [toys.REGISTRY]


def both(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n{HUNK}"


REFUSED = {
    "empty": ("", 0),
    "truncated hunk": (FILE + "@@ -1,3 +1,4 @@\n a\n b\n", 3),
    "count too small": (FILE + "@@ -1,2 +1,3 @@\n a\n+b\n c\n d\n", 7),
    "count too large": (FILE + HUNK.replace("+1,4", "+1,5"), 3),
    "header that is no header": (FILE + "@@ -1,3 +1,4\n a\n b\n c\n+d\n", 3),
    "lost leading space": (FILE + "@@ -1,3 +1,4 @@\n a\n\n c\n+d\n", 3),
    "only context": (FILE + "@@ -1,2 +1,2 @@\n a\n b\n", 3),
    "no hunks": (FILE, 2),
    "no hunks in the first": (FILE + both("sglang/y.py"), 3),
    "text after a hunk": (FILE + HUNK + "-- \n2.39.5\n", 8),
    "absolute path": (both("/etc/passwd"), 1),
    "path above the tree": (both("sglang/../../etc/passwd"), 1),
    "outside sglang": (both("torch/x.py"), 1),
    "hidden file": (both("sglang/.x.py"), 1),
    "rename": (f"--- a/sglang/x.py\n+++ b/sglang/y.py\n{HUNK}", 1),
    "new file": ("--- /dev/null\n+++ b/sglang/x.py\n@@ -0,0 +1 @@\n+a\n", 1),
    "one file twice": (FILE + HUNK + FILE + HUNK, 8),
    "header that is no field": (f"no field\n---\n{FILE}{HUNK}", 1),
    "field given twice": (f"A: 1\nA: 2\n---\n{FILE}{HUNK}", 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_with_its_line(name: str) -> None:
    text, line = REFUSED[name]
    with pytest.raises(Refusal) as refusal:
        parse_patch("x.patch", text.encode())
    assert str(refusal.value).startswith(f"x.patch:{line}: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "@@ -2,2 +2,3 @@\n a\n+x\n b\n",  # one line off
        "@@ -1,2 +1,3 @@\n a\n+x\n B\n",  # context differs
        "@@ -7,1 +7,2 @@\n a\n+x\n",  # past the end
        "@@ -4,2 +4,3 @@\n a\n+x\n b\n@@ -1,2 +2,3 @@\n a\n+x\n b\n",  # out of order
    ],
)
def test_a_hunk_fits_exactly_or_not_at_all(text: str) -> None:
    patch = parse_patch("x.patch", (FILE + text).encode())
    with pytest.raises(Mismatch, match=r"^sglang/x\.py: "):
        forward([patch], PATH, b"a\nb\nc\na\nb\nc\n")


# Few distinct lines, so that blocks repeat and a hunk has more than one place to land on.
lines = st.lists(
    st.sampled_from([b"a", b"b", b"c", b"", b" d", b"-e", b"+f", b"\tg\r"]), max_size=14
)
texts = st.builds(
    lambda body, last: b"\n".join(body) + (b"\n" if last and body else b""), lines, st.booleans()
)


def diff_of(old: bytes, new: bytes) -> bytes:
    out = [FILE.encode()]
    body = difflib.diff_bytes(difflib.unified_diff, split(old), split(new), n=3, lineterm=b"\n")
    for line in list(body)[2:]:
        ended = line.endswith(b"\n")
        out.append(line if ended else line + b"\n\\ No newline at end of file\n")
    return b"".join(out)


@settings(max_examples=60, deadline=None)
@given(texts, texts)
def test_a_random_diff_goes_both_ways_and_as_git_applies_it(old: bytes, new: bytes) -> None:
    if old == new:
        return
    patch = parse_patch("x.patch", diff_of(old, new))
    assert forward([patch], PATH, old) == new
    assert backward([patch], PATH, new) == old
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / PATH
        target.parent.mkdir()
        target.write_bytes(old)
        (Path(folder) / "x.patch").write_bytes(diff_of(old, new))
        assert git(Path(folder), "apply", "--whitespace=nowarn", "x.patch").returncode == 0
        assert target.read_bytes() == new
