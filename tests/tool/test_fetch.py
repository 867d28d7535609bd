"""Fetching: next to another fetch, after a killed one, offline, without pip, for this Python."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tool import toy as toys
from tests.tool.conftest import Overlay
from tests.tool.test_two_at_once import RUN, SCRIPTS
from tests.tool.toy import CHOICES, RELEASE, Toy

PREVIOUS = f"cp{sys.version_info[0]}{sys.version_info[1] - 1}"


@pytest.fixture
def links(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes the toy's wheel from, in place of a network."""
    folder = tmp_path / "links"
    folder.mkdir()
    toy.wheel.rename(folder / toy.wheel.name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fetch(python: Path | str, toy: Toy) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-c", RUN, toy.repository, "fetch"],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_fetches_at_once_one_unpacks_and_all_end_well(toy: Toy, links: Path) -> None:
    runs = [fetch(sys.executable, toy) for _ in range(4)]
    said = [run.communicate()[0].partition(":")[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 4
    assert sorted(said) == ["already there"] * 3 + ["fetched"]


def test_what_a_killed_fetch_left_is_swept(toy: Toy, overlay: Overlay, links: Path) -> None:
    build = toy.pin.tree.parent
    for folder in (build, toy.pin.wheels):
        toys.write_files(folder, {".fetch/tree/half.py": ""})
    assert overlay("fetch").code == 0
    assert sorted(path.name for path in build.iterdir()) == [f"sglang-{RELEASE}", "wheels"]
    assert [path.name for path in toy.pin.wheels.iterdir()] == [toy.wheel.name]


def test_half_a_tree_is_not_there(toy: Toy, overlay: Overlay) -> None:
    overlay("fetch")
    (toy.pin.tree / CHOICES).unlink()
    refused = overlay("fetch")
    assert refused.code == 6
    assert f"{toy.pin.tree} lacks files of its wheel: delete it" in refused.err


def test_a_tree_of_another_python_is_refused(toy: Toy, overlay: Overlay) -> None:
    overlay("fetch")
    facts = toy.pin.tree / f"sglang-{RELEASE}.dist-info/WHEEL"
    facts.write_text(f"Tag: {PREVIOUS}-{PREVIOUS}-linux_x86_64\n")
    refused = overlay("fetch")
    assert refused.code == 6
    assert f"is for {PREVIOUS}-{PREVIOUS}-linux_x86_64, this is Python 3." in refused.err


def test_a_wheel_of_another_python_is_not_unpacked(toy: Toy, overlay: Overlay) -> None:
    name = toy.wheel.name.replace("py3-none", f"{PREVIOUS}-{PREVIOUS}")
    lock = toy.pin.lock_file
    lock.write_text(lock.read_text().replace(toy.wheel.name, name))
    toy.wheel.rename(toy.wheel.with_name(name))
    refused = overlay("fetch")
    assert refused.code == 6
    assert "has no wheel for Python 3." in refused.err
    assert not toy.pin.tree.exists()


def test_a_damaged_wheel_is_named(toy: Toy, overlay: Overlay, links: Path) -> None:
    wheel = toys.make_wheel(links, RELEASE, {**toys.UPSTREAM, CHOICES: "damaged\n"})
    refused = overlay("fetch")
    assert refused.code == 6
    assert f"{wheel} is not the wheel of the pin, or is damaged: take it away" in refused.err


@pytest.mark.skipif(not importlib.util.find_spec("ensurepip"), reason="this Python has none")
def test_a_python_without_pip_fetches(toy: Toy, links: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    run = fetch(tmp_path / "bare/bin/python", toy)
    assert run.communicate()[0].startswith("fetched")
    assert run.returncode == 0


def test_without_pip_and_ensurepip_it_says_what_to_install(
    toy: Toy, overlay: Overlay, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = overlay("fetch")
    assert refused.code == 6
    assert "has no pip: install pip for it, or put the wheel in build/wheels" in refused.err
