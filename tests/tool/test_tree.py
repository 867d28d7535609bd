"""Finding trees: layouts, interpreters and installations, and the version that they state."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from overlaytool import tree
from overlaytool.errors import Refusal

from tests.tool import toy as toys
from tests.tool.conftest import Overlay
from tests.tool.toy import BACKEND, Toy, snapshot


def interpreter(folder: Path, *path: Path) -> Path:
    """An executable that is this interpreter with folders on its path."""
    script = folder / "python"
    joined = os.pathsep.join(map(str, path))
    text = f'#!/bin/sh\nPYTHONPATH={joined} exec {sys.executable} "$@"\n'
    script.write_text(text, errors="surrogateescape")
    script.chmod(0o755)
    return script


def test_the_tree_of_an_interpreter_is_found_without_importing_it(
    toy: Toy, overlay: Overlay, tmp_path: Path
) -> None:
    toy.file("sglang/__init__.py").write_text("raise SystemExit('imported')\n")
    python = interpreter(tmp_path, toy.tree)
    assert tree.of_interpreter(str(python)).package == toy.tree / "sglang"
    assert overlay("apply", "--python", python).code == 0
    assert toy.file(BACKEND).exists()


def test_what_an_interpreter_prints_at_its_end_hides_nothing(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_bytes(
        b"import atexit, os\natexit.register(os.write, 1, b'[bye] \\xff\\n')\n"
    )
    python = interpreter(tmp_path, tmp_path / "site", toy.tree)
    assert tree.of_interpreter(str(python)).package == toy.tree / "sglang"


def test_a_tree_below_a_name_that_is_no_text(toy: Toy, overlay: Overlay, tmp_path: Path) -> None:
    named = tmp_path / os.fsdecode(b"\xff")
    toy.tree.rename(named)
    for verb in ("apply", "status", "unapply"):
        found = overlay(verb, "--json", "--python", interpreter(tmp_path, named))
        assert (found.code, found.err) == (0, "")
        assert json.loads(found.out)["package"] == str(named / "sglang")


def test_a_sglang_folder_where_the_user_stands_is_not_the_interpreters(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere/sglang").mkdir(parents=True)
    (tmp_path / "elsewhere/sglang/__init__.py").touch()
    monkeypatch.chdir(tmp_path / "elsewhere")
    python = interpreter(tmp_path, toy.tree)
    assert tree.of_interpreter(str(python)).package == toy.tree / "sglang"


def test_an_editable_install_leads_to_its_checkout(
    toy: Toy, overlay: Overlay, tmp_path: Path
) -> None:
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    toys.write_files(checkout / "python", toys.UPSTREAM)
    site.mkdir()
    finder = (
        "import sys, importlib.machinery as m\n"
        "class F:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        "        if name == 'sglang':\n"
        f"            return m.PathFinder.find_spec(name, [{str(checkout / 'python')!r}])\n"
        "sys.meta_path.append(F)\n"
    )
    (site / "sitecustomize.py").write_text(finder)
    python = interpreter(tmp_path, site)
    applied = overlay("apply", "--python", python)
    assert applied.code == 0
    assert str(checkout / "python/sglang") in applied.out
    assert (checkout / "python" / BACKEND).exists()


@pytest.mark.parametrize("python", ["missing", "false", "empty"])
def test_an_interpreter_without_sglang_is_a_usage_error(
    toy: Toy, overlay: Overlay, tmp_path: Path, python: str
) -> None:
    named = {"missing": tmp_path / "none", "false": "/bin/false"}
    refused = overlay("apply", "--python", named.get(python) or interpreter(tmp_path, tmp_path))
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1


def test_a_folder_without_sglang_is_a_usage_error(overlay: Overlay, tmp_path: Path) -> None:
    refused = overlay("apply", "--tree", tmp_path / "none")
    assert refused.code == 2
    assert "neither sglang/ nor python/sglang/" in refused.err


def test_a_folder_left_by_an_uninstall_does_not_hide_a_checkout(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "both/sglang").mkdir(parents=True)
    assert tree.at(tmp_path / "both").package == tmp_path / "both/sglang"
    toys.write_files(tmp_path / "both/python", toys.UPSTREAM)
    assert tree.at(tmp_path / "both").package == tmp_path / "both/python/sglang"


def test_a_zipped_sglang_is_no_folder(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="finds no sglang folder"):
        tree.of_interpreter(str(interpreter(tmp_path, toy.wheel)))


def test_the_version_is_the_one_that_the_tree_states(toy: Toy) -> None:
    here = tree.at(toy.tree)
    assert here.version() == "1.2.3"
    toy.file("sglang/_version.py").write_text('__version__ = "9.9"\n')
    assert here.version() == "9.9"
    toy.file("sglang/_version.py").unlink()
    assert here.version() == "1.2.3"
    toy.file("sglang-1.2.3.dist-info/METADATA").unlink()
    assert here.version() is None


def test_the_launcher_runs_in_a_bare_interpreter(toy: Toy) -> None:
    before = snapshot(Path(tree.__file__).parent)
    launcher = Path(tree.__file__).parents[1] / "overlay"
    command = f"{sys.executable} -I -S {launcher} --help > {toy.tree}/help"
    assert os.system(command) == 0
    assert "VERB" in toy.file("help").read_text()
    assert snapshot(Path(tree.__file__).parent) == before
