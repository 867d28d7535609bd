"""drift and rebase from the command line, on a small pin: exit codes, reports, new pins."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from carrytool import make_lock
from carrytool.cli import main
from overlaytool import cli

from tests.drift import small
from tests.tool import toy as toys

Overlay = Callable[..., tuple[int, str]]
SHIFTED = "# a line of upstream's\n" + small.REGISTRY
OTHER = small.CHOICES.replace("'c'", "'d'")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> toys.Toy:
    made = small.make(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.pin.wheels))
    return made


@pytest.fixture
def overlay(toy: toys.Toy, capsys: pytest.CaptureFixture[str]) -> Overlay:
    def run(*arguments: object) -> tuple[int, str]:
        try:
            code = main([str(argument) for argument in arguments], toy.repository)
        except SystemExit as usage:
            code = int(usage.code or 0)
        return code, "".join(capsys.readouterr())

    return run


def report(toy: toys.Toy, target: str = small.NEXT) -> Path:
    return toy.repository / "out" / "drift" / f"{toys.RELEASE}..{target}"


def test_the_pin_against_its_own_release_is_clean(toy: toys.Toy, overlay: Overlay) -> None:
    code, out = overlay("drift")
    assert code == 0
    assert "up to date" in out


def test_without_a_target_the_newest_release_of_the_index_is_taken(
    toy: toys.Toy, overlay: Overlay
) -> None:
    small.publish(toy, registry=SHIFTED)
    code, out = overlay("drift")
    assert code == 10
    assert "sglang 1.2.3 -> sglang 1.2.4" in out
    assert "+1" in out


def test_an_index_that_cannot_be_asked_is_never_clean(
    toy: toys.Toy, overlay: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(toy.tree))
    code, out = overlay("drift")
    assert code == 40
    assert "could not try" in out
    assert not report(toy).exists()


def test_a_flashinfer_that_cannot_be_had_is_never_clean(toy: toys.Toy, overlay: Overlay) -> None:
    small.publish(toy, flashinfer="9.2")
    assert overlay("drift", "--to", small.NEXT)[0] == 40


def test_a_conflict_exits_20_and_leaves_the_three_sides(toy: toys.Toy, overlay: Overlay) -> None:
    small.publish(toy, choices=OTHER)
    code, out = overlay("drift", "--to", small.NEXT)
    assert code == 20
    assert f"`choices.patch`: `{toys.CHOICES}` conflict: 1 of 1 hunks find no place" in out
    rejected = report(toy) / "review" / "choices.patch" / f"{toys.CHOICES}.rej"
    assert "+    'compact',\n" in rejected.read_text()


def test_a_renamed_function_of_a_tree_exits_30_and_names_our_line(
    toy: toys.Toy, overlay: Overlay
) -> None:
    toy.file(toys.REGISTRY).write_text(small.REGISTRY.replace("def register", "def add"))
    code, out = overlay("drift", "--to", toy.tree)
    assert code == 30
    assert f"### register ({toys.REGISTRY})\n\n- it is gone" in out
    assert "- `backend.py:4 register('compact')`" in out
    assert "- `registry.patch: register('compact')`" in out


def test_a_new_flashinfer_is_held_to_what_we_call_too(toy: toys.Toy, overlay: Overlay) -> None:
    small.flashinfer(toy, "9.2", "def plan(self, n, m): ...")
    small.publish(toy, flashinfer="9.2")
    code, out = overlay("drift", "--to", small.NEXT)
    assert code == 30
    assert "- `backend.py:5 wrapper.plan(1)`: missing a required argument: 'm'" in out
    assert "| flashinfer-python | ==9.1 | ==9.2 |" in out


def test_a_changed_body_is_to_be_read(toy: toys.Toy, overlay: Overlay) -> None:
    toy.file(toys.REGISTRY).write_text(small.REGISTRY.replace("= name", "= [name]"))
    code, out = overlay("drift", "--to", toy.tree)
    assert code == 20  # the patch has lost its context, too
    assert "-    BACKENDS[name] = name\n+    BACKENDS[name] = [name]" in out


def test_a_new_mention_is_to_be_read(toy: toys.Toy, overlay: Overlay) -> None:
    small.publish(toy, moved="if backend == 'a': ...\n")
    code, out = overlay("drift", "--to", small.NEXT)
    assert code == 15
    assert "+sglang/srt/moved.py:: if backend == 'a'" in out
    code, out = overlay("rebase", "--to", small.NEXT)
    assert (code, "say --read" in out) == (15, True)
    assert not (toy.repository / "patches" / small.NEXT).exists()
    overlay("rebase", "--to", small.NEXT, "--read")
    assert (toy.repository / "patches" / small.NEXT / "lock.toml").exists()


def test_a_file_that_does_not_parse_could_not_be_tried(toy: toys.Toy, overlay: Overlay) -> None:
    toy.file(toys.REGISTRY).write_text("def register(name:\n")
    code, out = overlay("drift", "--to", toy.tree)
    assert code == 40
    assert "line 1 does not parse" in out


def test_an_attribute_of_something_unknown_stops_the_lock(toy: toys.Toy, overlay: Overlay) -> None:
    toy.overlay(small.MODULE, "def start(pool: Any):\n    pool.size\n")
    code, out = overlay("lock")
    assert code == 1
    assert "reads .size of pool: say under [holds] in contract.toml what pool is" in out


def test_reports_are_the_same_bytes_each_time_and_for_a_wheel_as_for_its_tree(
    toy: toys.Toy, overlay: Overlay, tmp_path: Path
) -> None:
    wheel = small.publish(toy, registry=SHIFTED)
    overlay("drift", "--to", small.NEXT)
    first = (report(toy) / "report.md").read_text()
    overlay("drift", "--to", small.NEXT)
    assert (report(toy) / "report.md").read_text() == first
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "next")
    overlay("drift", "--to", tmp_path / "next")
    of_tree = (report(toy, "next") / "report.md").read_text()
    assert of_tree.split("## Patches")[1].split("Made from")[0] in first


def test_rebase_writes_a_pin_that_applies(toy: toys.Toy, overlay: Overlay, tmp_path: Path) -> None:
    wheel = small.publish(toy, registry=SHIFTED)
    code, out = overlay("rebase", "--to", small.NEXT)
    folder = toy.repository / "patches" / small.NEXT
    assert (code, out.count("landed")) == (10, 1)
    assert "Last-Rebased: sglang 1.2.4\n" in (folder / "registry.patch").read_text()
    assert "depends on in sglang 1.2.4" in (folder / "contract.toml").read_text()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "next")
    where = ["--pin", small.NEXT, "--tree", str(tmp_path / "next")]
    assert cli.main(["apply", *where], toy.repository) == 0
    assert overlay("check", "--pin", small.NEXT)[0] == 0
    assert "there already" in overlay("rebase", "--to", small.NEXT)[1]


def test_rebase_lands_nothing_until_each_patch_is_settled(toy: toys.Toy, overlay: Overlay) -> None:
    small.publish(toy, choices=OTHER)
    code, out = overlay("rebase", "--to", small.NEXT)
    folder = toy.repository / "patches" / small.NEXT
    assert (code, folder.exists()) == (20, False)
    assert "choices.patch not settled" in out
    edited = toy.repository / "edited" / "choices.patch" / toys.CHOICES
    edited.parent.mkdir(parents=True)
    edited.write_text(OTHER.replace("]", "    'compact',\n]"))
    code, _ = overlay("rebase", "--to", small.NEXT, "--resolved", toy.repository / "edited")
    assert code == 10
    assert "+    'compact',\n" in (folder / "choices.patch").read_text()


def test_a_dropped_patch_is_not_in_the_new_series(toy: toys.Toy, overlay: Overlay) -> None:
    small.publish(toy, choices=OTHER)
    code, _ = overlay("rebase", "--to", small.NEXT, "--drop", "choices.patch")
    assert code == 10
    folder = toy.repository / "patches" / small.NEXT
    assert (folder / "series").read_text() == "registry.patch\n"
    assert not (folder / "choices.patch").exists()


def test_a_rebase_that_fails_half_way_leaves_no_pin(
    toy: toys.Toy, overlay: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.publish(toy)

    def full_disk(_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make_lock, "write", full_disk)
    code, out = overlay("rebase", "--to", small.NEXT)
    assert (code, "No space left" in out) == (40, True)
    assert not (toy.repository / "patches" / small.NEXT).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("rebase",),
        ("rebase", "--to", "main"),
        ("rebase", "--to", "1.2.3", "--drop", "other.patch"),
        ("rebase", "--to", "1.2.3", "--resolved", "nowhere"),
        ("drift", "--pin", "0.0.1"),
    ],
)
def test_what_was_not_understood_is_a_usage_error(
    overlay: Overlay, arguments: tuple[str, ...]
) -> None:
    assert overlay(*arguments)[0] == 2


def test_each_verb_lists_its_exit_codes(overlay: Overlay) -> None:
    for verb in ("drift", "rebase"):
        _, out = overlay(verb, "--help")
        assert all(f"\n  {code}  " in out for code in (0, 2, 10, 15, 20, 30, 40))
