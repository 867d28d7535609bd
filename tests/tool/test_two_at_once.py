"""Two runs on one tree: one of them works, the other says who holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from overlaytool import disk, tree

from tests.tool.conftest import Overlay
from tests.tool.toy import Toy, snapshot

RUN = "import sys; from pathlib import Path; from overlaytool.cli import main; "
RUN += "sys.exit(main(sys.argv[2:], Path(sys.argv[1])))"
SCRIPTS = Path(disk.__file__).parents[1]


def test_the_holder_is_named_and_nothing_is_written(toy: Toy, overlay: Overlay) -> None:
    before = snapshot(toy.tree)
    with disk.exclusive(tree.at(toy.tree)):
        for verb in ("apply", "unapply"):
            refused = overlay(verb, "--tree", toy.tree)
            assert refused.code == 7
            assert f"process {os.getpid()}" in refused.err
        assert overlay("status", "--tree", toy.tree).code == 0
    assert snapshot(toy.tree) == before
    assert overlay("apply", "--tree", toy.tree).code == 0


def test_many_at_once_end_in_one_sound_state(toy: Toy, overlay: Overlay) -> None:
    command = [sys.executable, "-c", RUN, str(toy.repository), "apply", "--tree", str(toy.tree)]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    runs = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(6)
    ]
    codes = [run.wait() for run in runs]
    for run in runs:
        run.communicate()
    assert set(codes) <= {0, 7}
    assert 0 in codes
    assert overlay("status", "--tree", toy.tree).out.splitlines()[-1].startswith("applied")
