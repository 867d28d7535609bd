"""Apply and unapply on a small tree: every state, and nothing written where they refuse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from overlaytool.contract import digest_of
from overlaytool.contract.symbols import Modules

from tests.tool import toy as toys
from tests.tool.conftest import Overlay
from tests.tool.toy import BACKEND, CHOICES, REGISTRY, SUPPORT, Toy, snapshot


@pytest.mark.parametrize("mode", [0o640, 0o444, 0o755])
def test_apply_then_unapply_gives_every_byte_and_mode_back(
    toy: Toy, overlay: Overlay, mode: int
) -> None:
    toy.file(CHOICES).chmod(mode)
    before = snapshot(toy.tree)
    applied = overlay("apply", "--tree", toy.tree)
    assert applied.code == 0
    assert applied.out.splitlines()[-1].startswith("applied: 4 files written: sglang 1.2.3")
    assert toy.file(REGISTRY).read_text().endswith("register('compact')\n")
    assert toy.file(CHOICES).stat().st_mode & 0o777 == mode
    assert toy.file(BACKEND).read_text() == toys.OVERLAY[BACKEND]
    off = overlay("unapply", "--tree", toy.tree)
    assert off.code == 0
    assert off.out.splitlines()[-1].startswith("unapplied: 2 files removed, 2 put back: sglang")
    assert snapshot(toy.tree) == before


def test_apply_and_unapply_twice_do_nothing_the_second_time(toy: Toy, overlay: Overlay) -> None:
    for verb, said in (("apply", "already applied"), ("unapply", "nothing to unapply")):
        assert overlay(verb, "--tree", toy.tree).code == 0
        before = {f: f.stat().st_mtime_ns for f in toy.tree.rglob("*")}
        again = overlay(verb, "--tree", toy.tree)
        assert again.code == 0
        assert again.out.startswith(said)
        assert overlay("unapply", "--tree", toy.tree, "--from-wheel", "/none").code == 6
        assert {f: f.stat().st_mtime_ns for f in toy.tree.rglob("*")} == before


def test_overlay_files_are_written_before_those_that_import_them(
    toy: Toy, overlay: Overlay
) -> None:
    lines = overlay("plan", "--tree", toy.tree).out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == [BACKEND, SUPPORT, CHOICES, REGISTRY]


def test_plan_writes_nothing_and_lists_what_apply_lists(toy: Toy, overlay: Overlay) -> None:
    before = snapshot(toy.tree)
    planned = overlay("plan", "--tree", toy.tree)
    assert planned.code == 0
    assert snapshot(toy.tree) == before
    applied = overlay("apply", "--tree", toy.tree)
    assert planned.out.splitlines()[:-1] == applied.out.splitlines()[:-1]


def test_status_says_which_state(toy: Toy, overlay: Overlay) -> None:
    pristine = overlay("status", "--tree", toy.tree)
    assert (pristine.code, pristine.out.split(":")[0]) == (0, "pristine")
    assert f"absent     {BACKEND}\n" in pristine.out
    assert f"pristine   {CHOICES}\n" in pristine.out
    overlay("apply", "--tree", toy.tree)
    applied = overlay("status", "--tree", toy.tree)
    assert (applied.code, applied.out.split(":")[0]) == (0, "applied")
    assert len(applied.out.splitlines()) == 5


@pytest.mark.parametrize("verb", ["apply", "unapply"])
def test_a_reinstall_over_an_applied_tree_is_partial_and_either_verb_finishes(
    toy: Toy, overlay: Overlay, verb: str
) -> None:
    pristine = snapshot(toy.tree)
    overlay("apply", "--tree", toy.tree)
    applied = snapshot(toy.tree)
    toys.write_files(toy.tree, toys.UPSTREAM)
    status = overlay("status", "--tree", toy.tree)
    assert status.code == 3
    assert "partial; apply or unapply finishes it" in status.out
    assert overlay(verb, "--tree", toy.tree).code == 0
    assert snapshot(toy.tree) == (applied if verb == "apply" else pristine)


@pytest.mark.parametrize("verb", ["plan", "apply", "unapply"])
@pytest.mark.parametrize("first", ["apply", "unapply"])
def test_a_hand_edited_file_is_named_and_nothing_is_written(
    toy: Toy, overlay: Overlay, verb: str, first: str
) -> None:
    overlay(first, "--tree", toy.tree)
    with toy.file(REGISTRY).open("a") as file:
        file.write("# edited\n")
    before = snapshot(toy.tree)
    refused = overlay(verb, "--tree", toy.tree)
    assert refused.code == 4
    assert REGISTRY in refused.err
    assert CHOICES not in refused.err
    assert "--from-wheel" in refused.err
    assert snapshot(toy.tree) == before
    status = overlay("status", "--tree", toy.tree)
    assert status.code == 4
    row = next(line for line in status.out.splitlines() if REGISTRY in line)
    assert all(word in row for word in ("foreign", "found ", "pristine ", "applied "))


def test_unapply_from_wheel_mends_a_foreign_tree_and_says_what_it_overwrote(
    toy: Toy, overlay: Overlay
) -> None:
    before = snapshot(toy.tree)
    overlay("apply", "--tree", toy.tree)
    toy.file(REGISTRY).write_text("edited\n")
    toy.file(BACKEND).write_text("edited too\n")
    toy.file(CHOICES).unlink()
    mended = overlay("unapply", "--tree", toy.tree, "--from-wheel", toy.wheel)
    assert mended.code == 0
    assert f"change     {REGISTRY}  held " in mended.out
    assert f"remove     {BACKEND}  held " in mended.out
    assert snapshot(toy.tree) == before


def test_unapply_from_wheel_refuses_another_wheel(
    toy: Toy, overlay: Overlay, tmp_path: Path
) -> None:
    other = toys.make_wheel(tmp_path, "1.2.4", {**toys.UPSTREAM, REGISTRY: "other\n"})
    overlay("apply", "--tree", toy.tree)
    before = snapshot(toy.tree)
    damaged = tmp_path / "damaged.whl"
    damaged.write_bytes(toy.wheel.read_bytes()[:-30])
    for wheel in (other, tmp_path / "missing.whl", damaged):
        refused = overlay("unapply", "--tree", toy.tree, "--from-wheel", wheel)
        assert refused.code == 6
        assert refused.err.endswith(" the wheel of the pin\n")
        assert snapshot(toy.tree) == before


VERSIONS = ("0.0.0.dev1+gdce8b0606", "1.2.3.dev0", "1.2.4.dev12+gabc", "9.9.9")


@pytest.mark.parametrize("version", VERSIONS)
def test_content_decides_whatever_version_an_editable_install_states(
    toy: Toy, overlay: Overlay, version: str
) -> None:
    stated = toy.file("sglang/_version.py")
    stated.write_text(f"__version__ = version = {version!r}\n")
    before = snapshot(toy.tree)
    assert overlay("status", "--tree", toy.tree).code == 0
    assert overlay("apply", "--tree", toy.tree).code == 0
    stated.write_text("__version__ = version = '7'\n")
    assert overlay("status", "--tree", toy.tree).code == 0
    assert overlay("unapply", "--tree", toy.tree).code == 0
    stated.write_text(f"__version__ = version = {version!r}\n")
    assert snapshot(toy.tree) == before


def test_foreign_files_of_another_version_are_told_by_that_version(
    toy: Toy, overlay: Overlay
) -> None:
    toy.file("sglang/_version.py").write_text("__version__ = version = '1.2.2'\n")
    toy.file("sglang/srt/choices.py").write_text("of another release\n")
    before = snapshot(toy.tree)
    for verb in ("status", "plan", "apply", "unapply"):
        refused = overlay(verb, "--tree", toy.tree)
        assert refused.code == 5
        assert "states sglang 1.2.2, the pin is 1.2.3: the pins are 1.2.3, named" in refused.err
    assert overlay("unapply", "--tree", toy.tree, "--from-wheel", toy.wheel).code == 5
    assert snapshot(toy.tree) == before
    toy.file("sglang/_version.py").write_text("__version__ = version = '1.2.4.dev12+gabc'\n")
    assert "sglang/srt/choices.py  found" in overlay("apply", "--tree", toy.tree).err


def test_a_neighbour_that_breaks_the_contract_is_refused(toy: Toy, overlay: Overlay) -> None:
    digest = digest_of(Modules({"n.py": b"def leaned_on(): ..."}.get), "n.py:leaned_on")
    (toy.pin.folder / "contract.toml").write_text(
        f'["sglang/srt/neighbour.py"]\nleaned_on = ["{digest}", "a.py"]\n'
    )
    toy.file("sglang/srt/neighbour.py").write_text("def leaned_on(): ...\n")
    assert overlay("apply", "--tree", toy.tree).code == 0
    toy.file("sglang/srt/neighbour.py").write_text("def leaned_on(): return 1\n")
    before = snapshot(toy.tree)
    for verb in ("apply", "verify"):
        refused = overlay(verb, "--tree", toy.tree)
        assert refused.code == 30
        assert "sglang/srt/neighbour.py: leaned_on is not as sglang 1.2.3 has it" in refused.err
    assert snapshot(toy.tree) == before


def test_a_file_that_no_lock_knows_stops_apply(toy: Toy, overlay: Overlay) -> None:
    (toy.pin.repository / "overlay/sglang/srt/compact/added.py").write_text("new = 1\n")
    before = snapshot(toy.tree)
    refused = overlay("apply", "--tree", toy.tree)
    assert refused.code == 1
    assert "sglang/srt/compact/added.py: run `make lock`" in refused.err
    assert snapshot(toy.tree) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="another owner needs root")
def test_owner_group_and_modes_of_what_is_new_follow_the_tree(toy: Toy, overlay: Overlay) -> None:
    for folder, _, files in os.walk(toy.tree):
        for path in (Path(folder), *(Path(folder, file) for file in files)):
            path.chmod(0o775 if path.is_dir() else 0o664)
            os.chown(path, 1234, 4321)
    umask = os.umask(0o077)
    try:
        assert overlay("apply", "--tree", toy.tree).code == 0
    finally:
        os.umask(umask)
    found = {path: path.stat() for path in toy.tree.rglob("*")}
    assert {(state.st_uid, state.st_gid) for state in found.values()} == {(1234, 4321)}
    assert {s.st_mode & 0o777 for path, s in found.items() if path.is_dir()} == {0o775}
    assert {s.st_mode & 0o777 for path, s in found.items() if path.is_file()} == {0o664}


def test_a_local_version_is_the_same_version(toy: Toy, overlay: Overlay) -> None:
    toy.file("sglang/_version.py").write_text("__version__ = version = '1.2.3+cu130'\n")
    assert overlay("apply", "--tree", toy.tree).code == 0


def test_a_checkout_that_states_no_version_is_judged_by_content(
    toy: Toy, overlay: Overlay, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    toys.write_files(checkout / "python", toys.UPSTREAM)
    (checkout / "python/sglang/_version.py").unlink()
    subprocess.run(["rm", "-r", str(checkout / "python/sglang-1.2.3.dist-info")], check=True)
    before = snapshot(checkout)
    assert overlay("apply", "--tree", checkout).code == 0
    assert (checkout / "python" / BACKEND).exists()
    assert overlay("unapply", "--tree", checkout).code == 0
    assert snapshot(checkout) == before
    (checkout / "python" / CHOICES).write_text("other\n")
    assert overlay("status", "--tree", checkout).code == 4


def test_unapply_removes_what_an_uninstall_left(toy: Toy, overlay: Overlay) -> None:
    overlay("apply", "--tree", toy.tree)
    for path in toys.UPSTREAM:
        toy.file(path).unlink()
    status = overlay("status", "--tree", toy.tree)
    assert status.code == 4
    assert "uninstalled" in status.out
    assert overlay("apply", "--tree", toy.tree).code == 4
    assert overlay("unapply", "--tree", toy.tree).code == 0
    assert not (toy.tree / "sglang").exists()


def test_empty_folders_that_an_uninstall_left_are_told_from_a_rest_of_ours(
    toy: Toy, overlay: Overlay
) -> None:
    overlay("apply", "--tree", toy.tree)
    for path in toys.UPSTREAM:
        toy.file(path).unlink()
    (toy.tree / "sglang/api/v1").mkdir(parents=True)
    assert "unapply removes" in overlay("apply", "--tree", toy.tree).err
    assert overlay("unapply", "--tree", toy.tree).code == 0
    said = overlay("status", "--tree", toy.tree).out + overlay("apply", "--tree", toy.tree).err
    assert said.count("nothing of the overlay is left") == 2
    assert "unapply removes" not in said


def test_files_of_others_in_our_folder_are_kept(toy: Toy, overlay: Overlay) -> None:
    overlay("apply", "--tree", toy.tree)
    notes = toy.file(BACKEND).with_name("notes.txt")
    notes.write_text("mine\n")
    assert overlay("unapply", "--tree", toy.tree).code == 0
    assert [file.name for file in notes.parent.iterdir()] == ["notes.txt"]


def test_an_earlier_revision_is_upgraded_and_taken_off(toy: Toy, overlay: Overlay) -> None:
    pristine = snapshot(toy.tree)
    toys.commit(toy)
    overlay("apply", "--tree", toy.tree)
    toy.overlay(SUPPORT, "NAME = 'newer'\n")
    toy.overlay("sglang/srt/compact/added.py", "")
    (toy.repository / "overlay" / BACKEND).unlink()
    toy.patch("registry.patch", toys.REGISTRY_PATCH.replace("'compact'", "'newer'"))
    toy.series("registry.patch")
    assert overlay("lock").code == 0
    earlier = snapshot(toy.tree)
    status = overlay("status", "--tree", toy.tree)
    assert (status.code, "apply upgrades it" in status.out) == (3, True)
    assert overlay("apply", "--tree", toy.tree).code == 0
    assert toy.file(REGISTRY).read_text().endswith("register('newer')\n")
    assert toy.file(CHOICES).read_text() == toys.UPSTREAM[CHOICES]
    assert not toy.file(BACKEND).exists()
    assert overlay("status", "--tree", toy.tree).out.startswith("applied:")
    toy.file(REGISTRY).write_text(toys.UPSTREAM[REGISTRY] + "\n\nregister('compact')\n")
    assert overlay("unapply", "--tree", toy.tree).code == 0
    assert snapshot(toy.tree) == pristine
    assert earlier != pristine


def test_an_edited_file_that_the_new_revision_no_longer_has_is_refused(
    toy: Toy, overlay: Overlay
) -> None:
    pristine = snapshot(toy.tree)
    toys.commit(toy)
    overlay("apply", "--tree", toy.tree)
    (toy.repository / "overlay" / BACKEND).unlink()
    toy.overlay("sglang/srt/compact/added.py", "")
    overlay("lock")
    toy.file(BACKEND).write_text("edited\n")
    before = snapshot(toy.tree)
    for verb in ("apply", "unapply"):
        refused = overlay(verb, "--tree", toy.tree)
        assert (refused.code, BACKEND in refused.err) == (4, True)
    assert snapshot(toy.tree) == before
    wheel = ("--from-wheel", toy.wheel)
    assert overlay("unapply", "--tree", toy.tree, *wheel).code == 0
    assert snapshot(toy.tree) == pristine


def test_a_changed_patch_is_not_applied_until_it_is_locked(toy: Toy, overlay: Overlay) -> None:
    toy.patch("registry.patch", toys.REGISTRY_PATCH.replace("'compact'", "'other'"))
    before = snapshot(toy.tree)
    refused = overlay("apply", "--tree", toy.tree)
    assert refused.code == 1
    assert "lock" in refused.err
    assert snapshot(toy.tree) == before
