"""Each verdict on a file of ten lines, and what a carried patch then says."""

from __future__ import annotations

import pytest
from overlaytool import refresh
from overlaytool.carry import CarriedPatch, Carrier, Verdict, enclosing
from overlaytool.diff import Patch, apply
from overlaytool.parse import parse_patch

PATH = "sglang/maps.py"
PINNED = b"""\
import os

def decode():
    table = {
        "one": 1,
        "two": 2,
    }
    return table

LAST = os.name
"""
PATCHED = PINNED.replace(b'"two": 2,\n', b'"two": 2,\n        "ours": 3,\n')


def patch(old: bytes | None = PINNED, new: bytes | None = PATCHED, path: str = PATH) -> Patch:
    change = refresh.between(path, old, new)
    assert change is not None
    return Patch(f"{path.rpartition('/')[2]}.patch", {}, (change,))


def carry(target: bytes | None, *patches: Patch, pinned: bytes | None = PINNED) -> CarriedPatch:
    trees = {PATH: pinned}, {PATH: target}
    carrier = Carrier(trees[0].get, trees[1].get, ("new", "old"))
    return [carrier.carry(one) for one in patches or (patch(),)][-1]


def swapped(before: bytes, after: bytes, source: bytes = PINNED) -> bytes:
    assert before in source
    return source.replace(before, after, 1)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (PINNED, Verdict.CLEAN),
        (swapped(b"LAST", b"FINAL"), Verdict.CLEAN),
        (b"# one line more\n" + PINNED, Verdict.MOVED),
        (PATCHED, Verdict.UPSTREAMED),
        (b"# moved\n" + PATCHED, Verdict.UPSTREAMED),
        (swapped(b'"one": 1', b'"one": 11'), Verdict.MERGED),
        (b"\n" + PINNED + PINNED, Verdict.AMBIGUOUS),
        (swapped(b'"two": 2', b'"two": 22'), Verdict.CONFLICT),
        (None, Verdict.GONE),
    ],
)
def test_the_verdict_names_what_the_patch_met(target: bytes | None, verdict: Verdict) -> None:
    assert carry(target).verdict is verdict


def test_a_carried_patch_applies_where_it_was_found_and_says_how_far_it_moved() -> None:
    target = b"# one\n# two\n" + PINNED
    [file] = carry(target).files
    assert file.note == "+2"
    assert file.diff is not None
    assert apply(file.diff, target) == file.after == b"# one\n# two\n" + PATCHED


def test_a_hunk_without_context_below_belongs_at_the_end_of_the_file() -> None:
    at_end = patch(new=PINNED + b"MORE = 1\n")
    longer = b"\n" * 3 + PINNED
    moved = carry(longer, at_end)
    assert (moved.verdict, moved.files[0].after) == (Verdict.MOVED, longer + b"MORE = 1\n")
    grown = carry(PINNED + b"UPSTREAM = 2\n", at_end)
    assert grown.verdict is Verdict.CONFLICT


def test_a_patch_that_is_upstream_is_not_put_on_a_second_copy_of_its_context() -> None:
    assert carry(PATCHED + b"\n" + PINNED).verdict is Verdict.UPSTREAMED


WIDE = b"".join(b"line %d\n" % number for number in range(20))
TWO_HUNKS = WIDE.replace(b"line 4\n", b"line 4\nours\n").replace(b"line 15\n", b"line 15\nours\n")


def test_two_hunks_move_each_by_its_own_distance_and_make_a_sound_patch() -> None:
    target = b"new\n" + WIDE.replace(b"line 10\n", b"line 10\nnew\n")
    [file] = carry(target, patch(WIDE, TWO_HUNKS), pinned=WIDE).files
    assert (file.verdict, file.note) == (Verdict.MOVED, "+1, +2")
    assert file.diff is not None
    [read] = parse_patch("x.patch", refresh.patch_bytes(b"", "1", [file.diff])).files
    assert apply(read, target) == file.after


def test_hunks_whose_places_changed_order_are_no_move() -> None:
    lines = WIDE.splitlines(keepends=True)
    swapped_halves = b"".join([*lines[10:], *lines[:10]])
    result = carry(swapped_halves, patch(WIDE, TWO_HUNKS), pinned=WIDE)
    assert result.verdict is Verdict.CONFLICT


def test_a_conflict_names_the_function_and_shows_all_three_sides() -> None:
    [file] = carry(swapped(b'"two": 2', b'"two": 22')).files
    assert file.function == "decode"
    assert file.review is not None
    for mark in (b"<<<<<<< new", b"||||||| old", b"=======", b">>>>>>> maps.py.patch"):
        assert mark in file.review


def test_a_merge_that_does_not_parse_is_a_conflict() -> None:
    pinned = b"f(\n    1,\n)\n\n\nx = 1\ny = 2\nz = 3\n"
    change = patch(pinned, pinned.replace(b"z = 3", b"z = 4"))
    target = pinned.replace(b"    1,\n)\n", b"    1,\n").replace(b"x = 1", b"x = 2")
    result = carry(target, change, pinned=pinned)
    assert result.verdict is Verdict.CONFLICT
    assert "does not parse" in result.files[0].note


def test_a_merge_that_changes_nothing_is_upstream_already() -> None:
    target = swapped(b'"one": 1', b'"one": 11', PATCHED)
    assert carry(target).verdict is Verdict.UPSTREAMED


def test_a_patch_behind_a_broken_one_is_blocked_by_name_and_no_second_conflict() -> None:
    second = patch(PATCHED, PATCHED.replace(b"LAST", b"FINAL"))
    result = carry(swapped(b'"two": 2', b'"two": 22'), patch(), second)
    assert result.verdict is Verdict.BLOCKED
    assert result.files[0].note == "by maps.py.patch"


def test_a_patch_builds_on_the_carried_one_before_it() -> None:
    second = patch(PATCHED, PATCHED.replace(b'"ours": 3', b'"ours": 4'))
    result = carry(b"# more\n" + PINNED, patch(), second)
    assert result.verdict is Verdict.MOVED
    assert b'"ours": 4' in (result.files[0].after or b"")


@pytest.mark.parametrize(
    ("target", "verdict"),
    [(None, Verdict.CLEAN), (PATCHED, Verdict.UPSTREAMED), (PINNED, Verdict.CONFLICT)],
)
def test_a_new_file_needs_its_name_to_be_free(target: bytes | None, verdict: Verdict) -> None:
    assert carry(target, patch(None, PATCHED), pinned=None).verdict is verdict


def test_edited_files_replace_the_patch_and_may_have_another_path() -> None:
    other = "sglang/choices.py"
    trees = {PATH: PINNED}, {PATH: PINNED, other: b"A = 1\n"}
    carrier = Carrier(trees[0].get, trees[1].get, ("new", "old"))
    result = carrier.resolve(patch(), {other: b"A = 1\nB = 2\n"})
    assert result.verdict is Verdict.RESOLVED
    assert [file.path for file in result.files] == [other]


def test_a_refreshed_patch_keeps_its_header_and_states_the_release() -> None:
    header = b"Description: x\n more\nLast-Rebased: sglang 0.5.1\n---\n"
    change = refresh.between(PATH, PINNED, PATCHED)
    assert change is not None
    text = refresh.patch_bytes(header + b"--- a/x\n", "0.5.2", [change])
    assert text.startswith(b"Description: x\n more\nLast-Rebased: sglang 0.5.2\n---\n--- a/sglang/")
    assert parse_patch("x.patch", text).files[0].hunks[0].new == change.hunks[0].new


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"a\nb", b"a\nb\n"), (b"a\n", b"a\nb"), (None, b"a\n"), (b"a\n", None), (b"x\n" * 9, b"y\n")],
)
def test_a_written_change_reads_back_and_applies(old: bytes | None, new: bytes | None) -> None:
    change = refresh.between(PATH, old, new)
    assert change is not None
    [read] = parse_patch("x.patch", refresh.patch_bytes(b"", "1", [change])).files
    assert apply(read, old) == new
    assert apply(read.reversed(), new) == old


def test_the_enclosing_name_is_the_innermost() -> None:
    source = b"class A:\n    def f(self):\n        return 1\n\nx = 1\n"
    assert [enclosing(source, line) for line in (1, 3, 5)] == ["A", "A.f", "(module)"]
