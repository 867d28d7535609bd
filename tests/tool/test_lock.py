"""The lock: made from wheel, patches and overlay, the same each time, and keeping the past."""

from __future__ import annotations

import pytest
from overlaytool.lock import load

from tests.tool import toy as toys
from tests.tool.conftest import Overlay
from tests.tool.toy import BACKEND, CHOICES, REGISTRY, SUPPORT, Toy


def test_a_second_lock_gives_no_difference(toy: Toy, overlay: Overlay) -> None:
    before = toy.pin.lock_file.read_bytes()
    assert overlay("lock").out.startswith("no difference")
    assert toy.pin.lock_file.read_bytes() == before
    toy.overlay(SUPPORT, "NAME = 'newer'\n")
    assert overlay("lock").out.startswith("written")
    assert overlay("lock").out.startswith("no difference")


def test_check_is_silent_on_a_sound_lock_and_prints_the_difference_of_a_stale_one(
    toy: Toy, overlay: Overlay
) -> None:
    sound = overlay("check")
    assert sound.code == 0
    assert len(sound.out.splitlines()) == 2
    toy.overlay(SUPPORT, "NAME = 'newer'\n")
    before = toy.pin.lock_file.read_bytes()
    stale = overlay("check")
    assert stale.code == 1
    assert "+applied = " in stale.out
    assert "-applied = " in stale.out
    assert toy.pin.lock_file.read_bytes() == before


def test_what_was_committed_and_is_no_more_stands_in_earlier(toy: Toy, overlay: Overlay) -> None:
    first = {entry.path: entry for entry in toy.pin.lock().entries}
    toys.commit(toy)
    toy.overlay(SUPPORT, "NAME = 'newer'\n")
    (toy.repository / "overlay" / BACKEND).unlink()
    toy.series("registry.patch")
    overlay("lock")
    lock = toy.pin.lock()
    assert {entry.path for entry in lock.entries} == {SUPPORT, REGISTRY}
    gone = (SUPPORT, BACKEND, CHOICES)
    assert lock.earlier == {p: {first[p].applied[:16]: first[p].pristine} for p in gone}
    toys.commit(toy)
    assert overlay("lock").out.startswith("no difference")


def test_a_revision_that_comes_back_is_no_earlier_one(toy: Toy, overlay: Overlay) -> None:
    toys.commit(toy)
    toy.overlay(SUPPORT, "NAME = 'newer'\n")
    overlay("lock")
    toys.commit(toy)
    newer = {e.path: e for e in toy.pin.lock().entries}[SUPPORT].applied[:16]
    toy.overlay(SUPPORT, toys.OVERLAY[SUPPORT])
    overlay("lock")
    assert toy.pin.lock().earlier == {SUPPORT: {newer: "absent"}}


def test_an_overlay_file_that_shadows_upstream_is_refused(toy: Toy, overlay: Overlay) -> None:
    toy.overlay(CHOICES, "CHOICES = []\n")
    for verb in ("lock", "check"):
        refused = overlay(verb)
        assert refused.code == 1
        assert f"overlay/{CHOICES} shadows" in refused.err


def test_bytecode_and_hidden_files_are_no_part_of_the_overlay(toy: Toy, overlay: Overlay) -> None:
    toy.overlay("sglang/srt/compact/__pycache__/backend.cpython-311.pyc", "")
    toy.overlay("sglang/srt/compact/.backend.py.swp", "")
    assert overlay("lock").out.startswith("no difference")


def test_a_patch_that_does_not_fit_the_wheel_is_refused(toy: Toy, overlay: Overlay) -> None:
    toy.patch("choices.patch", toys.CHOICES_PATCH.replace("    'b',", "    'x',"))
    refused = overlay("lock")
    assert refused.code == 1
    assert "choices.patch on the pinned wheel" in refused.err


def test_a_wheel_with_another_hash_is_never_used(toy: Toy, overlay: Overlay) -> None:
    toys.make_wheel(toy.pin.wheels, toys.RELEASE, {**toys.UPSTREAM, "sglang/evil.py": ""})
    refused = overlay("fetch")
    assert refused.code == 6
    assert not toy.pin.tree.exists()


def test_fetch_unpacks_once(toy: Toy, overlay: Overlay) -> None:
    assert overlay("fetch").out.startswith("fetched")
    assert (toy.pin.tree / CHOICES).read_text() == toys.UPSTREAM[CHOICES]
    assert overlay("fetch").out.startswith("already there")
    assert overlay("apply").code == 0
    assert overlay("status").out.splitlines()[-1].startswith("applied")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lock = 2\n",
        "not toml",
        "lock = 1\n",
        "lock = 1\nwheels = 3\npath = [1]\n",
        'lock = 1\n[[path]]\npath = "sglang/../victim.py"\npristine = "absent"\napplied = "a"\n',
    ],
)
def test_a_file_that_is_no_lock_is_refused(toy: Toy, overlay: Overlay, text: str) -> None:
    toy.pin.lock_file.write_text(text)
    refused = overlay("status", "--tree", toy.tree)
    assert refused.code == 1
    assert len(refused.err.splitlines()) == 1
    assert "lock.toml" in refused.err


def test_loading_gives_what_was_dumped(toy: Toy) -> None:
    lock = load(toy.pin.lock_file, toy.pin.earlier_file)
    assert [entry.path for entry in lock.entries] == sorted(e.path for e in lock.entries)
    assert {entry.patches for entry in lock.entries} == {
        (),
        ("choices.patch",),
        ("registry.patch",),
    }
