"""Killed, or failing, at every system call that writes: files stay whole and the next run heals.

The points are not a list of ours: an audit hook of the interpreter sees every call that opens for
writing, moves, removes or makes anything; `fsync`, which has no audit event, is counted as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from carrytool import cli as carry
from overlaytool.cli import main

from tests.tool import toy as toys
from tests.tool.conftest import Overlay
from tests.tool.toy import BACKEND, CHOICES, REGISTRY, SUPPORT, Toy, snapshot

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CALLS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link"}
BYTECODE = "registry.cpython-311.pyc"
SCENARIOS = ["apply", "unapply", "upgrade", "mend"]


class Counter:
    """Calls `strike` at the given point, counted from 1; `calls` says how many there were."""

    def __init__(self, point: int, strike: Callable[[int], None]) -> None:
        self.point, self.strike, self.calls = point, strike, 0

    def hit(self) -> None:
        self.calls += 1
        if self.calls >= self.point:
            self.strike(self.calls - self.point)

    def fsync(self, fd: object) -> None:
        self.hit()

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        opens = event == "open" and isinstance(args[2], int) and args[2] & WRITING
        if opens or event in CALLS:
            self.hit()


def kill(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(later: int) -> None:
    if later == 0:
        raise KeyboardInterrupt


def fail_once(later: int) -> None:
    if later == 0:
        raise OSError(errno.ENOSPC, "No space left on device")


def fail_on(_: int) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def struck(toy: Toy, arguments: list[str], point: int, strike: Callable[[int], None]) -> int:
    """Run a verb in a child that is struck at a point; its exit code, or minus its signal.

    An exit code of 100 or more says that the verb ended well before the point was reached.
    """
    child = os.fork()
    if child == 0:
        counter = Counter(point, strike)
        with (toy.repository / "said").open("w") as said, contextlib.redirect_stderr(said):
            with contextlib.redirect_stdout(said):
                os.fsync = counter.fsync
                sys.addaudithook(counter.audit)
                code = main(arguments, toy.repository)
            said.flush()
            os._exit(code if counter.calls >= point else 100 + code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def prepare(toy: Toy, scenario: str) -> list[str]:
    """Bring the toy where a scenario begins; the arguments of the verb to strike."""
    tree = ["--tree", str(toy.tree)]
    if scenario == "apply":
        return ["apply", *tree]
    assert main(["apply", *tree], toy.repository) == 0
    cache = toy.file(REGISTRY).parent / "__pycache__"
    cache.mkdir()
    (cache / BYTECODE).write_bytes(b"old")
    if scenario == "unapply":
        return ["unapply", *tree]
    if scenario == "mend":
        toy.file(REGISTRY).write_text("edited\n")
        return ["unapply", *tree, "--from-wheel", str(toy.wheel)]
    toys.commit(toy)
    toy.overlay(SUPPORT, "NAME = 'newer'\n")
    (toy.repository / "overlay" / BACKEND).unlink()
    toy.patch("registry.patch", toys.REGISTRY_PATCH.replace("'compact'", "'newer'"))
    assert carry.main(["lock"], toy.repository) == 0
    return ["apply", *tree]


def sources(toy: Toy) -> dict[str, tuple[int, str]]:
    return {path: found for path, found in snapshot(toy.tree).items() if "__pycache__" not in path}


class Ends:
    """What the files of a toy's tree may be: as before the verb, or as after it."""

    def __init__(self, toy: Toy, arguments: list[str]) -> None:
        self.toy, self.copy = toy, toy.repository / "before"
        shutil.copytree(toy.tree, self.copy)
        self.before = sources(toy)
        assert main(arguments, toy.repository) == 0
        self.after = sources(toy)
        self.ends = {"apply": self.finish("apply"), "unapply": self.finish("unapply")}
        self.reset()

    def reset(self) -> None:
        shutil.rmtree(self.toy.tree)
        shutil.copytree(self.copy, self.toy.tree)

    def finish(self, verb: str) -> dict[str, tuple[int, str]]:
        assert main([verb, "--tree", str(self.toy.tree)], self.toy.repository) == 0
        return sources(self.toy)

    def assert_whole(self) -> None:
        now = sources(self.toy)
        for path, found in now.items():
            if not path.endswith(".overlay-new"):
                assert found in (self.before.get(path), self.after.get(path)), path
        if now[REGISTRY] != self.before[REGISTRY]:
            assert not (self.toy.file(REGISTRY).parent / "__pycache__" / BYTECODE).exists()

    def assert_healed(self, mend: list[str]) -> None:
        """From the state that stands now, either verb ends as it would have ended in peace."""
        broken = self.toy.repository / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(self.toy.tree, broken)
        for verb, end in self.ends.items():
            shutil.rmtree(self.toy.tree)
            shutil.copytree(broken, self.toy.tree)
            assert not mend or main(mend, self.toy.repository) == 0
            assert self.finish(verb) == end


def visit(toy: Toy, scenario: str, strike: Callable[[int], None]) -> int:
    """Strike every point of a scenario in turn; how many points there were."""
    arguments = prepare(toy, scenario)
    ends = Ends(toy, arguments)
    mend = arguments if scenario == "mend" else []
    for point in range(1, 200):
        code = struck(toy, arguments, point, strike)
        ends.assert_whole()
        if code == 100:
            assert sources(toy) == ends.after
            return point - 1
        if strike is not kill:
            assert_refused_or_done(ends, code, strike is fail_once)
        ends.assert_healed(mend)
        ends.reset()
    raise AssertionError("the verb never ended")


def assert_refused_or_done(ends: Ends, code: int, once: bool) -> None:
    # A failure to sweep is not one: the verb then ends well.
    assert code in (0, 8)
    found = sources(ends.toy)
    if code == 0:
        ends.assert_whole()
    elif once:
        assert found == ends.before
    said = (ends.toy.repository / "said").read_text().splitlines()
    assert code == 0 or (len(said) == 1 and "cannot write" in said[0])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_write_is_healed_either_way(toy: Toy, scenario: str) -> None:
    assert visit(toy, scenario, kill) >= {"apply": 20, "unapply": 10}.get(scenario, 10)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_one_failed_write_anywhere_leaves_the_tree_as_it_was(toy: Toy, scenario: str) -> None:
    assert visit(toy, scenario, fail_once) >= 10


@pytest.mark.parametrize("scenario", ["apply", "unapply"])
def test_a_disk_that_fails_from_any_write_on_leaves_whole_files(toy: Toy, scenario: str) -> None:
    assert visit(toy, scenario, fail_on) >= 10


def test_a_read_only_tree_is_told_in_one_sentence(toy: Toy, overlay: Overlay) -> None:
    before = snapshot(toy.tree)
    assert struck(toy, ["apply", "--tree", str(toy.tree)], 1, fail_on) == 8
    (said,) = (toy.repository / "said").read_text().splitlines()
    assert "Read-only file system" in said
    assert "as it was: make it writable" in said
    assert snapshot(toy.tree) == before


def test_nothing_to_do_on_a_read_only_tree_is_no_failure(toy: Toy, overlay: Overlay) -> None:
    assert struck(toy, ["unapply", "--tree", str(toy.tree)], 1, fail_on) % 100 == 0
    overlay("apply", "--tree", toy.tree)
    assert struck(toy, ["apply", "--tree", str(toy.tree)], 1, fail_on) % 100 == 0


def test_an_interrupt_from_the_keyboard_leaves_the_tree_as_it_was(toy: Toy) -> None:
    before = snapshot(toy.tree)
    for point in (1, 9, 17):
        assert struck(toy, ["apply", "--tree", str(toy.tree)], point, interrupt) == 130
        assert snapshot(toy.tree) == before


def test_a_half_written_staged_file_is_swept(toy: Toy, overlay: Overlay) -> None:
    before = snapshot(toy.tree)
    toy.file(BACKEND).parent.mkdir()
    for path in (BACKEND, REGISTRY):
        staged = toy.file(path)
        staged.with_name(f".{staged.name}.overlay-new").write_text("ha")
    assert overlay("unapply", "--tree", toy.tree).code == 0
    assert snapshot(toy.tree) == before


def test_a_roll_back_goes_on_past_a_file_that_fails_and_names_it(
    toy: Toy, overlay: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(toy.tree)
    moved, replace = [], Path.replace

    def failing(self: Path, target: Path) -> Path:
        moved.append(target.name)
        if target.name == "registry.py" or moved.count("choices.py") > 1:
            raise OSError(errno.EBUSY, "Device or resource busy", str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    refused = overlay("apply", "--tree", toy.tree)
    assert refused.code == 8
    assert "registry.py: Device or resource busy" in refused.err
    assert f"left half-way, at {CHOICES}: " in refused.err
    after = snapshot(toy.tree)
    assert {path for path in after if after[path] != before.get(path)} == {CHOICES}
