"""The reader of patch files: what it takes, and the corpus of what it refuses, with the line."""

from __future__ import annotations

import pytest
from overlaytool.diff import Mismatch, apply, places, split
from overlaytool.parse import BadPatch, parse_patch

from tests.tool import toy as toys

FILE = "--- a/sglang/x.py\n+++ b/sglang/x.py\n"
HUNK = "@@ -1,3 +1,4 @@\n a\n b\n c\n+d\n"
NEW = "--- /dev/null\n+++ b/sglang/x.py\n@@ -0,0 +1 @@\n+a\n"
GONE = "--- a/sglang/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"


def test_header_fields_continue_on_indented_lines() -> None:
    patch = parse_patch("x.patch", toys.REGISTRY_PATCH.encode())
    assert list(patch.header)[:2] == ["Description", "Why-not-a-plugin"]
    assert patch.header["Description"] == "one concern\ntold in full on a second line"
    assert [(f.path, f.kind, f.count("+"), f.count("-")) for f in patch.files] == [
        (toys.REGISTRY, "modify", 3, 0)
    ]


def test_git_and_plain_diffs_of_regular_files_are_read() -> None:
    git = "diff --git a/sglang/x.py b/sglang/x.py\n"
    for text in (
        FILE + HUNK,
        f"{git}index 1234567..89abcde 100644\n{FILE}{HUNK}",
        f"{git}new file mode 100644\nindex 0000000..89abcde\n{NEW}",
        f"{git}deleted file mode 100644\nindex 89abcde..0000000\n{GONE}",
        f"X: a field\n---\n{FILE}{HUNK}",
    ):
        assert parse_patch("x.patch", text.encode()).files[0].path == "sglang/x.py"


def both(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n{HUNK}"


HOSTILE = {
    "empty": ("", 1),
    "truncated hunk": (FILE + "@@ -1,3 +1,4 @@\n a\n b\n", 6),
    "truncated line": (FILE + HUNK[:-1], 7),
    "count too small": (FILE + "@@ -1,3 +1,3 @@\n a\n b\n c\n+d\n", 7),
    "count too large": (FILE + HUNK.replace("+1,4", "+1,5"), 8),
    "old count too small": (FILE + "@@ -1,2 +1,4 @@\n+a\n b\n c\n d\n", 7),
    "header that is no header": (FILE + "@@ -1,3 +1,4\n a\n b\n c\n+d\n", 3),
    "absurd count": (FILE + f"@@ -1,{10**30} +1,4 @@\n a\n", 3),
    "lost leading space": (FILE + "@@ -1,3 +1,4 @@\n a\n\n c\n+d\n", 5),
    "only context": (FILE + "@@ -1,2 +1,2 @@\n a\n b\n", 6),
    "line zero": (FILE + "@@ -0,3 +0,4 @@\n a\n b\n c\n+d\n", 8),
    "hunks overlap": (FILE + HUNK + "@@ -2,1 +3,2 @@\n b\n+z\n", 8),
    "hunks out of order": (FILE + "@@ -9 +9,2 @@\n a\n+b\n@@ -1 +2,2 @@\n c\n+d\n", 6),
    "starts disagree": (FILE + HUNK.replace("+1,4", "+2,4"), 3),
    "no hunks": (FILE, 3),
    "text after a hunk": (FILE + HUNK + "-- \n2.39.5\n", 8),
    "blank line after a hunk": (FILE + HUNK + "\n", 8),
    "CRLF patch": ((FILE + HUNK).replace("\n", "\r\n"), 1),
    "CRLF in one header": (FILE.replace("py\n", "py\r\n", 1) + HUNK, 1),
    "timestamp": (FILE.replace("py\n", "py\t2026-01-01\n", 1) + HUNK, 1),
    "quoted path": ('--- "a/sglang/\\170.py"\n+++ "b/sglang/\\170.py"\n' + HUNK, 1),
    "absolute path": (both("/etc/passwd"), 1),
    "path above the tree": (both("sglang/../../etc/passwd"), 1),
    "path of one dot": (both("sglang/./x.py"), 1),
    "doubled slash": (both("sglang//x.py"), 1),
    "outside sglang": (both("torch/x.py"), 1),
    "python prefix": (both("python/sglang/x.py"), 1),
    "sglang itself": (both("sglang"), 1),
    "hidden file": (both("sglang/.x.py"), 1),
    "backslash": (both("sglang\\x.py"), 1),
    "no prefix": (f"--- sglang/x.py\n+++ sglang/x.py\n{HUNK}", 1),
    "rename by names": (f"--- a/sglang/x.py\n+++ b/sglang/y.py\n{HUNK}", 3),
    "one file twice": (FILE + HUNK + FILE + HUNK, 15),
    "both sides null": (f"--- /dev/null\n+++ /dev/null\n{HUNK}", 3),
    "new file over lines": (NEW.replace("-0,0 +1 @@", "-1 +1,2 @@").replace("+a\n", " b\n+a\n"), 6),
    "deletion that leaves lines": (GONE.replace("+0,0", "+1").replace("-a\n", " b\n-a\n"), 5),
    "no newline mid-hunk": (
        FILE + "@@ -1,2 +1,3 @@\n a\n\\ No newline at end of file\n b\n+c\n",
        5,
    ),
    "line after one without newline": (
        FILE + "@@ -6,1 +6,2 @@\n c\n\\ No newline at end of file\n+x\n",
        5,
    ),
}
GIT_ONLY = {
    "symlink": "new file mode 120000\n",
    "edited symlink": "index 1234567..89abcde 120000\n",
    "submodule": "new file mode 160000\n",
    "executable": "new file mode 100755\n",
    "mode change": "old mode 100644\nnew mode 100755\n",
    "rename": "similarity index 90%\nrename from sglang/x.py\nrename to sglang/y.py\n",
    "copy": "similarity index 90%\ncopy from sglang/x.py\ncopy to sglang/y.py\n",
    "binary": "index 1234567..89abcde 100644\nGIT binary patch\n",
    "binary differ": "Binary files a/sglang/x.py and b/sglang/x.py differ\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_or_hostile_patch_is_refused_with_its_line(name: str) -> None:
    text, line = HOSTILE[name]
    with pytest.raises(BadPatch) as refusal:
        parse_patch("x.patch", text.encode())
    assert str(refusal.value).startswith(f"x.patch:{line}: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", GIT_ONLY)
def test_only_regular_files_are_changed(name: str) -> None:
    text = f"diff --git a/sglang/x.py b/sglang/x.py\n{GIT_ONLY[name]}{FILE}{HUNK}"
    with pytest.raises(BadPatch, match=r"^x\.patch:[23]: "):
        parse_patch("x.patch", text.encode())


@pytest.mark.parametrize("header", ["no field", "A: 1\nA: 2", " continues nothing", "B\xff: 1", ""])
def test_a_header_line_that_is_no_field_is_refused(header: str) -> None:
    text = f"{header}\n---\n{FILE}{HUNK}"
    with pytest.raises(BadPatch, match=r"^x\.patch:\d: "):
        parse_patch("x.patch", text.encode("latin-1"))


def hunks(text: str) -> bytes | None:
    return apply(parse_patch("x.patch", (FILE + text).encode()).files[0], b"a\nb\nc\na\nb\nc\n")


@pytest.mark.parametrize(
    "text",
    [
        "@@ -2,2 +2,3 @@\n a\n+x\n b\n",  # one line off
        "@@ -1,2 +1,3 @@\n a\n+x\n B\n",  # context differs
        "@@ -1,2 +1,3 @@\n a\n b\n+x\n",  # no trailing context, and the file goes on
        "@@ -7,1 +7,2 @@\n a\n+x\n",  # past the end
        "@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+b\n",
        "@@ -6 +6 @@\n-c\n+c\n\\ No newline at end of file\n@@ -6,0 +7 @@\n+x\n",
    ],
)
def test_a_hunk_fits_exactly_or_not_at_all(text: str) -> None:
    with pytest.raises(Mismatch, match=r"^sglang/x\.py: "):
        hunks(text)


def test_a_hunk_is_placed_by_its_line_not_by_the_first_match() -> None:
    assert hunks("@@ -4,2 +4,3 @@\n a\n+x\n b\n") == b"a\nb\nc\na\nx\nb\nc\n"


def test_every_place_of_a_hunk_is_found() -> None:
    patch = parse_patch("x.patch", (FILE + "@@ -1,2 +1,3 @@\n a\n+x\n b\n").encode())
    assert places(patch.files[0].hunks[0], split(b"a\nb\na\nb\n")) == [0, 2]


def test_adding_needs_an_absent_file_and_deleting_all_of_its_lines() -> None:
    new, gone = (parse_patch("x.patch", text.encode()).files[0] for text in (NEW, GONE))
    assert apply(new, None) == b"a\n"
    assert apply(gone, b"a\n") is None
    assert apply(new.reversed(), b"a\n") is None
    for file, data in ((new, b""), (gone, None), (gone, b"a\nb\n"), (gone, b"b\n")):
        with pytest.raises(Mismatch):
            apply(file, data)
