"""The pins of this repository on the wheels that they are made for, fetched by the tool itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from carrytool import cli as carry
from carrytool import releases
from overlaytool import cli, fetch
from overlaytool.pin import REPOSITORY, Pin

from tests.tool.toy import snapshot

PINS = sorted(series.parent.name for series in REPOSITORY.glob("patches/*/series"))
SEAM = "sglang/srt/layers/attention/attention_registry.py"


def wheel(release: str) -> Path:
    pin = Pin(REPOSITORY, release)
    if pin.lock_file.exists():
        return fetch.wheel(pin, release, pin.lock().wheels)
    return releases.wheel("sglang", release, pin.wheels)


def unpack(release: str, root: Path, seams_only: bool = True) -> None:
    """Unpack a wheel, or only its modules of sglang.srt and what states its version."""
    paths = {"sglang/__init__.py", "sglang/_version.py", "sglang/version.py"}
    with zipfile.ZipFile(wheel(release)) as archive:
        names = archive.namelist()
        archive.extractall(
            root, [n for n in names if n in paths or is_module(n)] if seams_only else None
        )


def is_module(name: str) -> bool:
    return name.startswith(("sglang/srt/", "sglang/kernels/")) and name.endswith(".py")


def overlay(verb: str, release: str, *arguments: object) -> int:
    main = carry.main if verb in carry.VERBS else cli.main
    return main([verb, "--pin", release, *map(str, arguments)])


@pytest.mark.parametrize("release", PINS)
def test_the_lock_is_sound(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert overlay("check", release) == 0, capsys.readouterr().out


@pytest.mark.parametrize("release", PINS)
def test_the_whole_tree_comes_back_byte_for_byte(release: str, tmp_path: Path) -> None:
    unpack(release, tmp_path, seams_only=False)
    before = snapshot(tmp_path)
    assert overlay("apply", release, "--tree", tmp_path) == 0
    changed = {path for path, found in snapshot(tmp_path).items() if before.get(path) != found}
    locked = {entry.path for entry in Pin(REPOSITORY, release).lock().entries}
    assert {path for path in changed if (tmp_path / path).is_file()} == locked
    assert overlay("apply", release, "--tree", tmp_path) == 0
    assert overlay("unapply", release, "--tree", tmp_path) == 0
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("release", PINS)
def test_site_packages_of_a_virtual_environment_through_its_python(
    release: str, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    unpack(release, site)
    before = snapshot(site)
    python = tmp_path / "venv/bin/python"
    assert overlay("apply", release, "--python", python) == 0
    assert overlay("status", release, "--python", python) == 0
    assert len(snapshot(site)) > len(before)
    assert overlay("unapply", release, "--python", python) == 0
    assert snapshot(site) == before


EDITABLE = ("0.0.0.dev1+gdce8b0606", "0.5.23.dev0", "0.5.24.dev12+gabc1234")


@pytest.mark.parametrize(
    ("release", "stated"),
    [(release, None) for release in PINS] + [(PINS[-1], stated) for stated in EDITABLE],
)
def test_a_git_checkout_that_an_image_installs_as_editable(
    release: str, stated: str | None, tmp_path: Path
) -> None:
    root = tmp_path / "sgl-workspace/sglang"
    unpack(release, root / "python")
    version = root / "python/sglang/_version.py"
    version.unlink() if stated is None else version.write_text(f"__version__ = {stated!r}\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "__editable__.sglang.pth").write_text(f"{root / 'python'}\n")
    before = snapshot(root)
    python = tmp_path / "venv/bin/python"
    assert overlay("apply", release, "--python", python) == 0
    assert overlay("status", release, "--tree", root) == 0
    assert snapshot(root) != before
    assert overlay("unapply", release, "--python", python) == 0
    assert snapshot(root) == before


@pytest.mark.parametrize("release", PINS)
def test_a_tree_of_0_5_21_is_another_version_and_stays_untouched(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("0.5.21", tmp_path)
    before = snapshot(tmp_path)
    for verb in ("status", "plan", "apply", "unapply"):
        assert overlay(verb, release, "--tree", tmp_path) == 5
        assert "states sglang 0.5.21, the pin is" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_the_bytes_of_another_pin_are_known_without_a_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("0.5.22", tmp_path)
    (tmp_path / "sglang/_version.py").unlink()
    before = snapshot(tmp_path)
    from_wheel = ("unapply", "--from-wheel", wheel("0.5.23"))
    for verb, *more in (("status",), ("apply",), ("unapply",), from_wheel):
        assert overlay(str(verb), "0.5.23", "--tree", tmp_path, *more) == 5
        assert "holds sglang 0.5.22: use --pin 0.5.22" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("release", PINS)
def test_a_hand_edited_seam_is_refused_and_the_pinned_wheel_mends_it(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack(release, tmp_path)
    pristine = snapshot(tmp_path)
    with (tmp_path / SEAM).open("a") as file:
        file.write("# edited\n")
    before = snapshot(tmp_path)
    assert overlay("apply", release, "--tree", tmp_path) == 4
    assert SEAM in capsys.readouterr().err
    assert snapshot(tmp_path) == before
    mend = ("--from-wheel", wheel(release))
    assert overlay("unapply", release, "--tree", tmp_path, *mend) == 0
    assert SEAM in capsys.readouterr().out
    assert snapshot(tmp_path) == pristine


@pytest.mark.parametrize("release", PINS)
def test_git_apply_makes_the_same_bytes(release: str, tmp_path: Path) -> None:
    unpack(release, tmp_path / "git")
    unpack(release, tmp_path / "ours")
    pin = Pin(REPOSITORY, release)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(tmp_path),
    }
    for name in pin.series():
        command = ["git", "apply", str(pin.folder / name)]
        subprocess.run(command, cwd=tmp_path / "git", env=environment, check=True)
    assert overlay("apply", release, "--tree", tmp_path / "ours") == 0
    ours = snapshot(tmp_path / "ours")
    made = snapshot(tmp_path / "git")
    assert {path: ours[path] for path in made} == made
