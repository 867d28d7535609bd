"""A server's life: hot and flushed caches, aborts, weights that are loaded anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bench.lookup import advance
from tests.gpu.draft_model import changed_copy
from tests.gpu.engine_calls import Ask, flush, reload
from tests.gpu.lookups import TASK, alone, behind, mistakes
from tests.gpu.machine import release
from tests.gpu.served import Served, engine, made_once, running

SETUPS = ["compact", "compact-gather"]
PREFIX = alone(2000, 5, 1).prompt
CHUNKED: dict[str, object] = {"chunked_prefill_size": 768}  # less than the prefix
GRAPHS: dict[str, object] = {
    "disable_prefill_cuda_graph": False,
    "cuda_graph_backend_prefill": "breakable",
    "cuda_graph_bs_prefill": [256, 512, 1024],
}
# How the other checkpoint answers: as if it had one layer more.
FURTHER = replace(TASK, layers=TASK.layers + 1)


@pytest.fixture(scope="module")
def engines(
    small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    wanted = {name: (name, engine(small_model, CHUNKED)) for name in SETUPS}
    wanted["breakable"] = ("compact", engine(small_model, GRAPHS))
    with running(tmp_path_factory.mktemp("life"), wanted) as served:
        yield served


@pytest.fixture(params=SETUPS)
def server(engines: dict[str, Served], request: pytest.FixtureRequest) -> Served:
    return engines[request.param]


@pytest.fixture(scope="module")
def other_model(small_model: Path) -> Path:
    """The small model, its output head moved on by one token of each cycle."""
    return made_once(small_model.with_name("other-model"), lambda to: move_on(small_model, to))


def move_on(model: Path, to: Path) -> None:
    changed_copy(model, to, "lm_head.weight", lambda head: head[one_on(len(head))])


def one_on(tokens: int) -> list[int]:
    return [advance(token, -1) for token in range(tokens)]


def sharing(requests: int, tokens: int = 40) -> list[Ask]:
    """Requests behind one prefix, each longer than the one before."""
    own = range(40, 40 + requests)
    return [behind(PREFIX, length, Random(length), tokens) for length in own]


def test_tokens_are_right_behind_a_hot_prefix(server: Served) -> None:
    server.call(flush)
    first, *rest = sharing(33)
    assert mistakes([first], server.ask([first])) == []
    answers = server.ask(rest)
    assert min(answer.cached for answer in answers) >= len(PREFIX)
    assert mistakes(rest, answers) == []


def test_tokens_are_right_after_the_cache_was_flushed(server: Served) -> None:
    """Slots are given out anew, to other rows than before."""
    asked = sharing(5)
    server.ask(asked)
    server.call(flush)
    others = [alone(700, number, 20) for number in range(20)]
    assert mistakes(others, server.ask(others)) == []
    again = server.ask(asked[:1])
    assert again[0].cached < len(PREFIX)
    assert mistakes(asked[:1], again) == []


def test_an_abort_in_mid_decode_leaves_other_requests_right(server: Served) -> None:
    asked = [alone(300 + 10 * n, n, 4000 if n % 3 else 300, 20 * (n % 3)) for n in range(24)]
    answers = server.ask(asked)
    assert mistakes(asked, answers) == []
    aborted = [answer for answer in answers if answer.ended == "abort"]
    assert len(aborted) == 16
    assert max(len(answer.tokens) for answer in aborted) < 4000
    # Their slots were given back: an engine that has not got them all can't be flushed.
    server.call(flush)
    assert mistakes(asked[::3], server.ask(asked[::3])) == []


def test_weights_that_are_loaded_anew_take_effect_under_captured_graphs(
    server: Served, small_model: Path, other_model: Path
) -> None:
    asked = [alone(500, number, 30) for number in range(16)]
    for model, task in ((small_model, TASK), (other_model, FURTHER), (small_model, TASK)):
        assert server.call(reload, str(model))[0]
        assert mistakes(asked, server.ask(asked), task) == []


def test_tokens_are_right_when_prefill_replays_breakable_graphs(engines: dict[str, Served]) -> None:
    server = engines["breakable"]
    for length in (256, 500, 900):
        asked = [alone(length, length, 20)]
        assert mistakes(asked, server.ask(asked)) == []
    for asked in ([alone(150, number, 20) for number in range(6)], sharing(6)):
        assert mistakes(asked, server.ask(asked)) == []
    assert [line for line in prefills(server) if "cuda graph: True" in line]


def test_tokens_are_right_when_a_prefill_graph_reads_a_cached_prefix(
    engines: dict[str, Served],
) -> None:
    if release() == "0.5.17":
        pytest.skip("this release replays no prefill graph behind a cached prefix")
    server = engines["breakable"]
    server.call(flush)
    server.ask(sharing(1))
    before = len(graphed_behind_a_prefix(server))
    for own in (150, 256, 400, 900):
        asked = [behind(PREFIX, own, Random(own), 20)]
        (answer,) = server.ask(asked)
        assert answer.cached >= len(PREFIX)
        assert mistakes(asked, [answer]) == []
    assert len(graphed_behind_a_prefix(server)) - before == 4


def graphed_behind_a_prefix(server: Served) -> list[str]:
    graphed = [line for line in prefills(server) if "cuda graph: True" in line]
    return [line for line in graphed if "#cached-token: 0," not in line]


def prefills(server: Served) -> list[str]:
    """What the engine logged of each prefill."""
    return [line for line in server.log.read_text().splitlines() if "Prefill batch" in line]
