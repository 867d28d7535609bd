"""Speculative decoding by n-grams in a served engine: drafts that are verified under graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.lookups import alone, mistakes
from tests.gpu.served import Served, engine, running

DRAFTS = 4
NGRAM: dict[str, object] = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": DRAFTS,
    "speculative_ngram_min_bfs_breadth": 1,
    "speculative_ngram_max_bfs_breadth": 1,
    "cuda_graph_bs_decode": [1, 8],
    "max_running_requests": 8,
}


@pytest.fixture(scope="module")
def server(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    wanted = {"ngram": ("compact", engine(small_model, NGRAM))}
    with running(tmp_path_factory.mktemp("ngram"), wanted) as served:
        yield served["ngram"]


@pytest.mark.parametrize("requests", [1, 5, 8])
def test_tokens_are_right_whether_drafts_are_accepted_or_not(server: Served, requests: int) -> None:
    """The second time the drafts are what the first time generated."""
    asked = [alone(300 + 50 * number, 100 * requests + number, 120) for number in range(requests)]
    first, second = server.ask(asked), server.ask(asked)
    assert mistakes(asked, first) == []
    assert mistakes(asked, second) == []
    accepted = [len(answer.tokens) / answer.steps for answer in second]
    assert max(accepted) > DRAFTS / 2
