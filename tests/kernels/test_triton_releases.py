"""Another Triton costs speed, not the start: names that it lacks, and the newest there is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.layers.attention.flashinfer_mla_compact.direct.configs import CONFIGS, PLAIN

from tests.kernels import aot
from tests.kernels.gluon_names import GLUON, Name, names, without
from tests.kernels.test_compile import attend_job

BUILD = Path(__file__).parents[2] / "build"
NAMES = names()
LANGUAGE = f"{GLUON}.gluon.language"
# Kernels that can't be imported without a name, and what the H200 runs 64 query rows with then.
LOST = {
    (GLUON, "gluon"): (["mma", "wgmma"], "plain"),
    (LANGUAGE, "NVMMADistributedLayout"): (["wgmma"], "mma"),
    (f"{LANGUAGE}.nvidia", "hopper"): (["wgmma"], "mma"),
    (f"{LANGUAGE}.nvidia.ampere", "mma_v2"): (["mma"], "wgmma"),
    (f"{LANGUAGE}.nvidia.ampere", "async_copy"): (["mma", "wgmma"], "plain"),
}


@pytest.fixture(scope="module")
def left() -> dict[Name, dict[str, Any]]:
    return dict(zip(NAMES, without(NAMES), strict=True))


@pytest.mark.parametrize("name", NAMES, ids=".".join)
def test_a_name_that_is_gone_takes_away_no_more_than_the_kernels_that_are_told(
    left: dict[Name, dict[str, Any]], name: Name
) -> None:
    found = left[name]
    assert "plain" in found["kernels"]
    assert sorted([*found["kernels"], *found["faults"]]) == ["mma", "plain", "wgmma"]
    assert set(found["chosen"]) <= set(found["kernels"])
    assert all(name[1] in fault for fault in found["faults"].values())


@pytest.mark.parametrize("name", LOST, ids=".".join)
def test_what_can_be_built_takes_the_place_of_what_can_not(
    left: dict[Name, dict[str, Any]], name: Name
) -> None:
    assert (sorted(left[name]["faults"]), left[name]["hopper"]) == LOST[name]


@pytest.fixture(scope="module")
def newest() -> Path:
    """The newest Triton of the package index, unpacked."""
    command = [sys.executable, "-m", "pip", "download", "triton", "--no-deps", "--quiet"]
    done = subprocess.run([*command, "--dest", BUILD / "wheels"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package index gives triton: {done.stderr.strip().splitlines()[-1]}")
    wheel = max((BUILD / "wheels").glob("triton-*.whl"), key=_version)
    folder = BUILD / wheel.name.split("-cp")[0]
    if not folder.exists():
        part = folder.with_suffix(".part")
        zipfile.ZipFile(wheel).extractall(part)
        for tool in part.glob("triton/backends/nvidia/bin/*"):
            tool.chmod(0o755)
        part.rename(folder)
    return folder


def _version(wheel: Path) -> list[int]:
    return [int(part) for part in wheel.name.split("-")[1].split(".")]


def test_every_kernel_compiles_with_the_newest_triton(newest: Path) -> None:
    configs = [(90, CONFIGS[90][16]), (90, CONFIGS[90][64]), (90, PLAIN[2][16])]
    configs += [(120, CONFIGS[120][16]), (120, CONFIGS[120][32])]
    jobs = [attend_job(card, config, heads=config.rows) for card, config in configs]
    for job, report in zip(jobs, aot.compile_all(jobs, newest), strict=True):
        assert report.shared <= aot.SHARED_LIMIT[job.arch]
