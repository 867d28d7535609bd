"""`mla-compact` is the tools of a clone, and goes without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from overlaytool.pin import REPOSITORY, find

from tests.docs.conftest import unpack
from tests.trees import wheel as sglang_wheel
from tests.wheel.conftest import QUIET, Installed

PIN = find(REPOSITORY, None).release
TRACE = REPOSITORY / "tests" / "diagnose" / "data" / "h200-stock.json.gz"


def run(
    installed: Installed, *arguments: str | Path, sglang: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The command, where its interpreter finds the sglang in a folder, if any."""
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"PYTHONPATH": str(sglang)} if sglang else {}
    command = [installed.command, *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sglang")
    unpack(sglang_wheel(PIN), folder)
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.py")}


def test_it_patches_the_sglang_of_its_interpreter_and_gives_the_bytes_back(
    installed: Installed, sglang: Path
) -> None:
    before = files(sglang)
    assert "applied: " in run(installed, "apply", sglang=sglang).stdout
    status = run(installed, "status", sglang=sglang)
    assert status.stdout.startswith(f"applied: sglang {PIN}"), status
    assert run(installed, "unapply", sglang=sglang).returncode == 0
    assert files(sglang) == before


def test_it_applies_what_a_clone_applies(installed: Installed, sglang: Path) -> None:
    assert run(installed, "apply", "--tree", sglang).returncode == 0
    clone = [sys.executable, str(REPOSITORY / "scripts/overlay"), "status", "--tree", str(sglang)]
    assert subprocess.check_output(clone, text=True).startswith("applied: ")
    assert run(installed, "unapply", "--tree", sglang).returncode == 0


def test_the_doctor_knows_the_plugin(installed: Installed, sglang: Path) -> None:
    lines = run(installed, "doctor", sglang=sglang).stdout.splitlines()
    assert any(line.startswith("ok    overlay") and "serves as a plugin" in line for line in lines)


def test_a_message_names_the_command_and_not_a_script(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "_version.py").write_text(f'__version__ = "{PIN}"\n')
    refused = run(installed, "verify", sglang=tmp_path)
    assert refused.returncode != 0 and "scripts/" not in refused.stdout + refused.stderr
    refused = run(installed, "apply", "--no-such-option")
    assert refused.returncode == 2 and "usage: mla-compact " in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["diagnose", str(TRACE)], 1, "POOL CAST FOUND"),
        (["prove"], 2, "has no torch and no sglang"),
        (["doctor", "--help"], 0, "usage: mla-compact doctor"),
        (["--version"], 0, "mla-compact 0."),
        (["--help"], 0, "usage: mla-compact VERB"),
        ([], 2, "usage: mla-compact VERB"),
        (["carry"], 2, "'carry' is no verb: run mla-compact --help"),
    ],
)
def test_each_verb_answers(
    installed: Installed, arguments: list[str], code: int, text: str
) -> None:
    done = run(installed, *arguments)
    assert done.returncode == code and text in done.stdout + done.stderr, done


def test_an_uninstall_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path)
    before = {path for path in tmp_path.rglob("*") if path.name != "__pycache__"}
    made = Installed(tmp_path)
    made.pip("install", *QUIET, wheel)
    assert run(made, "status").returncode == 2  # and Python has compiled the modules
    made.pip("uninstall", "--quiet", "--yes", "flashinfer-mla-compact")
    assert {path for path in tmp_path.rglob("*") if path.name != "__pycache__"} == before


def test_a_tag_that_names_another_version_builds_nothing() -> None:
    script = REPOSITORY / "ci" / "wheel.sh"
    wrong = subprocess.run([script, "v0.0.0"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and "the tag is v0.0.0, pyproject.toml has" in wrong.stderr
    usage = subprocess.run([script, "--wrong"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2 and "usage: ci/wheel.sh" in usage.stderr
