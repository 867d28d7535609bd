"""A hierarchical cache in a served engine: prefixes leave the device and are loaded again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.gpu.lookups import alone, behind, mistakes
from tests.gpu.served import Served, engine, running

POOL = 8192
PREFIX = alone(2000, 5, 1).prompt
HIERARCHICAL: dict[str, object] = {
    "enable_hierarchical_cache": True,
    "hicache_ratio": 8.0,  # the host keeps all that the test asks
    # In the default layout 0.5.17 builds a kernel at start to move rows.
    "hicache_mem_layout": "layer_first",
    "chunked_prefill_size": 768,  # less than the prefix
}
SETUPS = ["compact", "compact-gather"]


@pytest.fixture(scope="module")
def engines(
    small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    wanted = {name: (name, engine(small_model, HIERARCHICAL, POOL)) for name in SETUPS}
    with running(tmp_path_factory.mktemp("hierarchical"), wanted) as served:
        yield served


@pytest.mark.parametrize("setup", SETUPS)
def test_tokens_are_right_behind_a_prefix_that_was_loaded_from_the_host(
    engines: dict[str, Served], setup: str
) -> None:
    """Attention to the first layers may begin while further ones are still being loaded."""
    server = engines[setup]
    for _ in range(2):
        server.ask([behind(PREFIX, 40, Random(40), 20)])
    for turn in range(3):
        # Twice the device's pool: the prefix, used the longest ago, has to make room.
        others = [alone(800, 20 * turn + number, 20) for number in range(20)]
        assert mistakes(others, server.ask(others)) == []
        first, *rest = [behind(PREFIX, 41 + 9 * turn + n, Random(n), 40) for n in range(9)]
        (answer,) = server.ask([first])
        assert answer.loaded >= len(PREFIX)
        assert mistakes([first], [answer]) == []
        assert mistakes(rest, server.ask(rest)) == []
