"""Memory that a served engine gives back and takes again, weights and pool."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.gpu.engine_calls import release, resume
from tests.gpu.lookups import SHAPE, alone, mistakes
from tests.gpu.served import Served, engine, running

if find_spec("torch_memory_saver") is None:
    pytest.skip("needs the package torch_memory_saver", allow_module_level=True)

POOL = 4 << 20  # far more than what other processes on the card take or give meanwhile
POOL_BYTES = POOL * 576 * SHAPE.layers
TOOLKIT = Path("/usr/local/cuda/lib64")


@pytest.fixture(scope="module")
def server(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Its scheduler starts with a library that needs the CUDA runtime from the linker's path."""
    packages = Path(torch.__file__).parents[1]
    folders = {file.parent for file in packages.glob("nvidia/*/lib/libcudart.so.*")} or {TOOLKIT}
    wanted = {"release": ("compact", engine(small_model, {"enable_memory_saver": True}, POOL))}
    with pytest.MonkeyPatch.context() as patch:
        for folder in folders:
            patch.setenv("LD_LIBRARY_PATH", str(folder), prepend=":")
        with running(tmp_path_factory.mktemp("release"), wanted) as served:
            yield served["release"]


def test_tokens_are_right_after_memory_was_released_and_resumed(
    server: Served, small_model: Path
) -> None:
    asked = [alone(500, number, 60) for number in range(16)]
    assert mistakes(asked, server.ask(asked)) == []
    free = torch.cuda.mem_get_info()[0]
    server.call(release)
    assert torch.cuda.mem_get_info()[0] - free > POOL_BYTES / 2
    assert server.call(resume, str(small_model))[0]
    assert mistakes(asked, server.ask(asked)) == []
