"""Each verdict on a file of ten lines, and what a carried patch then says."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from carrytool.carry import CarriedPatch, Carrier, Verdict, carrier
from overlaytool.patch import forward, parse_patch

PATH = "sglang/maps.py"
PINNED = """\
import os

def decode():
    table = {
        "one": 1,
        "two": 2,
    }
    return table

LAST = os.name
"""
PATCHED = PINNED.replace('"two": 2,\n', '"two": 2,\n        "ours": 3,\n')
WIDE = "".join(f"line {number}\n" for number in range(20))
TWO_HUNKS = WIDE.replace("line 4\n", "line 4\nours\n").replace("line 15\n", "line 15\nours\n")

Carry = Callable[..., CarriedPatch]


def diff(old: str, new: str) -> str:
    lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*lines, f"a/{PATH}", f"b/{PATH}"))


@pytest.fixture
def carry(tmp_path: Path) -> Carry:
    """Carries the change from one text to another, and perhaps a second one, to a target."""

    def run(target: str | None, *texts: str) -> CarriedPatch:
        before = {PATH: target.encode()} if target is not None else {}
        with carrier(before.get) as series:
            done = [one(series, *pair) for pair in itertools.pairwise(texts)]
        return done[-1]

    def one(series: Carrier, old: str, new: str) -> CarriedPatch:
        file = tmp_path / "maps.patch"
        file.write_text(diff(old, new))
        return series.carry(parse_patch("maps.patch", file.read_bytes()), file)

    return run


def swapped(before: str, after: str, source: str = PINNED) -> str:
    assert before in source
    return source.replace(before, after, 1)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (PINNED, Verdict.CLEAN),
        (swapped("LAST", "FINAL"), Verdict.CLEAN),
        ("# one line more\n" + PINNED, Verdict.MOVED),
        (PATCHED, Verdict.UPSTREAMED),
        ("# moved\n" + PATCHED, Verdict.UPSTREAMED),
        (PATCHED + "\n" + PINNED, Verdict.UPSTREAMED),
        (swapped('"one": 1', '"one": 11'), Verdict.MERGED),
        ("\n" + PINNED + PINNED, Verdict.AMBIGUOUS),
        (swapped('"two": 2', '"two": 22'), Verdict.CONFLICT),
        (None, Verdict.GONE),
    ],
)
def test_the_verdict_names_what_the_patch_met(
    carry: Carry, target: str | None, verdict: Verdict
) -> None:
    assert carry(target, PINNED, PATCHED).verdict is verdict


def test_a_carried_patch_applies_where_it_was_found_and_says_how_far_it_moved(carry: Carry) -> None:
    target = "# one\n# two\n" + PINNED
    carried = carry(target, PINNED, PATCHED)
    assert carried.files[0].note == "+2"
    patch = parse_patch("x.patch", carried.diff)
    assert forward([patch], PATH, target.encode()).decode() == "# one\n# two\n" + PATCHED


def test_a_hunk_without_context_below_belongs_at_the_end_of_the_file(carry: Carry) -> None:
    at_end = PINNED + "MORE = 1\n"
    assert carry("\n" * 3 + PINNED, PINNED, at_end).verdict is Verdict.MOVED
    assert carry(PINNED + "UPSTREAM = 2\n", PINNED, at_end).verdict is Verdict.MERGED


def test_two_hunks_move_each_by_its_own_distance_and_make_a_sound_patch(carry: Carry) -> None:
    target = "new\n" + WIDE.replace("line 10\n", "line 10\nnew\n")
    carried = carry(target, WIDE, TWO_HUNKS)
    assert (carried.verdict, carried.files[0].note) == (Verdict.MOVED, "+1, +2")
    patched = forward([parse_patch("x.patch", carried.diff)], PATH, target.encode()).decode()
    assert patched.count("ours") == 2


def test_a_conflict_shows_the_hunks_that_found_no_place_and_changes_nothing(carry: Carry) -> None:
    carried = carry(WIDE.replace("line 15", "other"), WIDE, TWO_HUNKS)
    (file,) = carried.files
    assert (file.verdict, file.note) == (Verdict.CONFLICT, "1 of 2 hunks find no place")
    assert (file.review or b"").count(b"+ours") == 1
    assert carried.diff == b""


def test_a_patch_behind_a_broken_one_is_blocked_by_name_and_no_second_conflict(
    carry: Carry,
) -> None:
    target = swapped('"two": 2', '"two": 22')
    result = carry(target, PINNED, PATCHED, PATCHED.replace("LAST", "FINAL"))
    assert result.verdict is Verdict.BLOCKED
    assert result.files[0].note == "by maps.patch"


def test_a_patch_builds_on_the_carried_one_before_it(carry: Carry) -> None:
    result = carry("# more\n" + PINNED, PINNED, PATCHED, swapped('"ours": 3', '"ours": 4', PATCHED))
    assert result.verdict is Verdict.MOVED
    assert b'-        "ours": 3' in result.diff


def test_edited_files_replace_the_patch_and_may_have_another_path() -> None:
    other = "sglang/choices.py"
    patch = parse_patch("maps.patch", diff(PINNED, PATCHED).encode())
    with carrier({other: b"A = 1\n"}.get) as series:
        result = series.resolve(patch, {other: b"A = 1\nB = 2\n"})
    assert result.verdict is Verdict.RESOLVED
    assert b"+++ b/sglang/choices.py\n" in result.diff
    assert b"+B = 2\n" in result.diff
