"""Apply and unapply where a tree holds links, bytecode, a checkout or other line ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tool import toy as toys
from tests.tool.conftest import Overlay
from tests.tool.toy import BACKEND, CHOICES, REGISTRY, Toy, snapshot


def test_uv_hard_links_keep_their_bytes(toy: Toy, overlay: Overlay, tmp_path: Path) -> None:
    cache = tmp_path / "cache.py"
    os.link(toy.file(REGISTRY), cache)
    overlay("apply", "--tree", toy.tree)
    assert cache.read_text() == toys.UPSTREAM[REGISTRY]
    os.link(toy.file(CHOICES), tmp_path / "applied.py")
    applied = toy.file(CHOICES).read_text()
    overlay("unapply", "--tree", toy.tree)
    assert (tmp_path / "applied.py").read_text() == applied


def test_a_symlinked_package_is_changed_where_it_lies(
    toy: Toy, overlay: Overlay, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sglang").symlink_to(toy.tree / "sglang")
    before = snapshot(toy.tree)
    applied = overlay("apply", "--tree", tmp_path / "site")
    assert applied.code == 0
    assert str(toy.tree / "sglang") in applied.out
    assert (tmp_path / "site/sglang").is_symlink()
    overlay("unapply", "--tree", tmp_path / "site")
    assert snapshot(toy.tree) == before


def test_links_inside_the_package_are_never_followed(
    toy: Toy, overlay: Overlay, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.py"
    toy.file(CHOICES).rename(elsewhere)
    toy.file(CHOICES).symlink_to(elsewhere)
    refused = overlay("apply", "--tree", toy.tree)
    assert refused.code == 4
    assert "symbolic link" in refused.err
    assert "name the folder that they lead to with --tree" in refused.err
    assert elsewhere.read_text() == toys.UPSTREAM[CHOICES]
    wheel = ("--from-wheel", toy.wheel)
    assert overlay("unapply", "--tree", toy.tree, *wheel).code == 0
    assert not toy.file(CHOICES).is_symlink()
    toy.file("sglang/srt").rename(tmp_path / "srt")
    toy.file("sglang/srt").symlink_to(tmp_path / "srt")
    assert overlay("apply", "--tree", toy.tree).code == 4
    assert overlay("unapply", "--tree", toy.tree, *wheel).code == 4


def test_a_link_where_an_overlay_file_goes_is_foreign(toy: Toy, overlay: Overlay) -> None:
    toy.file(BACKEND).parent.mkdir()
    toy.file(BACKEND).symlink_to("nowhere")
    assert overlay("apply", "--tree", toy.tree).code == 4
    assert overlay("unapply", "--tree", toy.tree).code == 4
    assert toy.file(BACKEND).is_symlink()


@pytest.mark.parametrize("mode", ["checked-hash", "unchecked-hash", "timestamp"])
def test_bytecode_of_the_old_source_is_never_run(toy: Toy, overlay: Overlay, mode: str) -> None:
    run = [sys.executable, "-c", "from sglang.srt import registry as r; print(len(r.BACKENDS))"]
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", mode]

    def backends() -> str:
        return subprocess.check_output(run, cwd=toy.tree, text=True).strip()

    for verb, count in (("apply", "1"), ("unapply", "0")):
        subprocess.run([*compile_all, str(toy.tree)], check=True)
        overlay(verb, "--tree", toy.tree)
        assert backends() == count
    assert not toy.file(BACKEND).parent.exists()


def test_a_nested_git_repository_changes_nothing(toy: Toy, overlay: Overlay) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(toy.tree.parent)]
    subprocess.run([*git, "init", "-q"], check=True)
    (toy.tree.parent / ".gitignore").write_text("*\n")
    subprocess.run([*git, "config", "apply.whitespace", "fix"], check=True)
    subprocess.run([*git, "config", "core.autocrlf", "true"], check=True)
    assert overlay("apply", "--tree", toy.tree).code == 0
    assert overlay("status", "--tree", toy.tree).out.startswith("applied")


def test_a_crlf_target_is_foreign(toy: Toy, overlay: Overlay) -> None:
    text = toys.UPSTREAM[CHOICES].replace("\n", "\r\n")
    toy.file(CHOICES).write_bytes(text.encode())
    assert overlay("apply", "--tree", toy.tree).code == 4
    assert toy.file(CHOICES).read_bytes() == text.encode()
