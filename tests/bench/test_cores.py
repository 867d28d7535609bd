"""Engines that are up at once get cores of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.cores import shares


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of four cores, whose threads are k and k + 4; CPU 7 belongs to another process."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    return tmp_path


def test_engines_share_no_core(topology: Path) -> None:
    assert shares(2, topology) == [{0, 4, 1, 5}, {2, 6, 3}]
    assert shares(3, topology) == [{0, 4}, {1, 5}, {2, 6}]


def test_engines_that_outnumber_the_cores_share_them_all(topology: Path) -> None:
    assert shares(5, topology) == [set(range(7))] * 5


def test_each_cpu_is_a_core_where_the_kernel_does_not_tell(topology: Path, tmp_path: Path) -> None:
    assert shares(2, tmp_path / "absent") == [{0, 1, 2}, {3, 4, 5}]
