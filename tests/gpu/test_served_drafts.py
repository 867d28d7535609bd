"""EAGLE and MTP in a served engine: drafts by a model of their own, verified under graphs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.draft import make_eagle
from bench.setups import DRAFT_STEPS as STEPS
from tests.gpu.draft_model import accepted, make_mtp, make_target
from tests.gpu.engine_calls import Ask, draft_replays
from tests.gpu.lookups import alone, differences, mistakes
from tests.gpu.served import Served, engine, made_once, running

if find_spec("deep_gemm") is None:  # sglang imports it when it captures a draft's graphs
    pytest.skip("needs the package deep_gemm", allow_module_level=True)

EAGLE: dict[str, object] = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": STEPS,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": STEPS + 1,
    "cuda_graph_bs_decode": [1, 8],
    "max_running_requests": 8,
    "decode_log_interval": 4,
}
# Setup and draft of each engine.
ENGINES = {
    "stock": ("stock", make_eagle),
    "direct": ("compact-direct", make_eagle),
    "gather": ("compact-gather", make_eagle),
    "mtp": ("compact", make_mtp),
}
OURS = ["direct", "gather", "mtp"]


@pytest.fixture(scope="module")
def engines(
    small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    beside = small_model.with_name
    target = made_once(beside("draft-target"), lambda to: make_target(small_model, to))
    wanted = {}
    for label, (setup, make) in ENGINES.items():
        draft = made_once(beside(make.__name__), make)
        options = EAGLE | {"speculative_draft_model_path": str(draft)}
        wanted[label] = (setup, engine(target, options))
    with running(tmp_path_factory.mktemp("drafts"), wanted) as served:
        yield served


@pytest.fixture(params=OURS)
def server(engines: dict[str, Served], request: pytest.FixtureRequest) -> Served:
    return engines[request.param]


def asked_at_once(requests: int) -> list[Ask]:
    return [alone(300 + 50 * number, 100 * requests + number, 120) for number in range(requests)]


@pytest.mark.parametrize("requests", [1, 5, 8])
def test_tokens_are_right_and_each_draft_is_what_the_draft_model_says(
    server: Served, requests: int
) -> None:
    """Were a draft another one, verify would accept other numbers of them, in more steps."""
    asked = asked_at_once(requests)
    assert {count for one in asked for count in accepted(one)} == set(range(STEPS + 1))
    answers = server.ask(asked)
    assert mistakes(asked, answers) == []
    assert [answer.steps for answer in answers] == [len(accepted(one)) for one in asked]


def test_tokens_equal_those_of_stock_with_the_same_draft(engines: dict[str, Served]) -> None:
    asked = asked_at_once(7)
    expected = engines["stock"].ask(asked)
    assert mistakes(asked, expected) == []
    for label in ("direct", "gather"):
        assert differences(engines[label].ask(asked), expected) == []


def test_drafts_and_verify_replay_graphs_of_our_backend(server: Served) -> None:
    before = server.call(draft_replays)
    (answer,) = server.ask(asked_at_once(1))
    assert server.call(draft_replays) - before >= answer.steps
    log = server.log.read_text().splitlines()
    assert [line for line in log if "Decode batch" in line and "cuda graph: True" in line]
    # The target's backend says what it does, and each of the draft's.
    assert len([line for line in log if "compact buffer of" in line]) > 2
