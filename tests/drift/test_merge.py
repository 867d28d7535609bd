"""Merges do not depend on who runs them or where, and a missing git is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from overlaytool.errors import Exit
from overlaytool.merge import MergeError, three_way

LABELS = ("new", "old", "ours")
BASE = b"a\nb\nc\nd\ne\nf\n"


def test_changes_in_different_places_merge() -> None:
    merged = three_way(BASE.replace(b"a", b"A"), BASE, BASE.replace(b"f", b"F"), LABELS)
    assert (merged.text, merged.conflicts) == (b"A\nb\nc\nd\ne\nF\n", 0)


def test_a_conflict_shows_three_sides_whatever_the_user_has_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[merge]\n\tconflictStyle = merge\n[core\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "not a number")
    merged = three_way(BASE.replace(b"c", b"C"), BASE, BASE.replace(b"c", b"x"), LABELS)
    marks = b"<<<<<<< new\nC\n||||||| old\nc\n=======\nx\n>>>>>>> ours\n"
    assert (merged.text, merged.conflicts) == (b"a\nb\n" + marks + b"d\ne\nf\n", 1)


def test_more_conflicts_than_an_exit_status_holds_are_conflicts_still() -> None:
    lines = [b"%d\n" % number for number in range(600)]
    ours = b"".join(b"o" + line if not n % 3 else line for n, line in enumerate(lines))
    theirs = b"".join(b"t" + line if not n % 3 else line for n, line in enumerate(lines))
    assert three_way(ours, b"".join(lines), theirs, LABELS).conflicts > 100


def test_bytes_that_git_calls_binary_are_not_merged_in_silence() -> None:
    with pytest.raises(MergeError, match="merge-file failed"):
        three_way(b"a\0b\n", BASE, BASE.replace(b"a", b"A"), LABELS)


def test_without_git_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MergeError, match="install git") as refusal:
        three_way(BASE, BASE, BASE, LABELS)
    assert refusal.value.code is Exit.UNAVAILABLE
