"""The traces in data/: small, reproducible, and judged as what they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.diagnose.conftest import Run
from tests.diagnose.synthetic import DATA, SHIPPED, write

SHIPPED_TRACES = sorted(DATA.glob("*.json.gz"))
LARGEST_BYTES = 200_000


@pytest.mark.parametrize("path", SHIPPED_TRACES, ids=lambda path: path.name)
def test_a_shipped_trace_is_small_and_holds_no_python_frames(path: Path) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert path.stat().st_size < LARGEST_BYTES
    assert "python_function" not in text


@pytest.mark.parametrize("path", SHIPPED_TRACES, ids=lambda path: path.name)
def test_a_shipped_trace_is_judged_as_its_name_says(diagnose: Run, path: Path) -> None:
    assert diagnose(path).returncode == (1 if "stock" in path.name else 0)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_synthetic_trace_is_what_the_script_writes(tmp_path: Path, name: str) -> None:
    made = write(tmp_path / name, SHIPPED[name])
    assert gzip.decompress(made.read_bytes()) == gzip.decompress((DATA / name).read_bytes())


def test_the_compact_trace_shows_the_overlay_at_work(diagnose: Run) -> None:
    done = diagnose(DATA / "synthetic-compact.json.gz")
    assert "no layer copies a KV pool" in done.stdout
    assert "flashinfer_mla_compact is at work" in done.stdout
