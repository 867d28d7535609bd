"""A draft step's lengths count the drafts before it and its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backend import upstream, upstream_backend
from tests.backend.conftest import Import

BACKEND = "sglang.srt.layers.attention.flashinfer_mla_backend"


class MultiStep:
    """Upstream's: a backend for each of the steps but the last, which needs no attention."""

    def __init__(self, runner: Any, topk: int, steps: int) -> None:
        self.attn_backends = [SimpleNamespace(kv_indptr=step) for step in range(steps - 1)]
        self.q_indptr_decode = None


@pytest.fixture
def draft(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    contents = {**upstream_backend.CONTENTS, "FlashInferMLAMultiStepDraftBackend": MultiStep}
    monkeypatch.setitem(upstream.MODULES, BACKEND, contents)
    overlay: Import = request.getfixturevalue("overlay")
    return overlay("draft")


def test_lengths_count_the_drafts_and_the_given_batch_stays(draft: Any) -> None:
    batch = SimpleNamespace(
        seq_lens=torch.tensor([5, 7]), seq_lens_cpu=torch.tensor([5, 7]), seq_lens_sum=12
    )
    longer = draft.with_drafts(batch, 3)
    assert longer.seq_lens.tolist() == longer.seq_lens_cpu.tolist() == [8, 10]
    assert longer.seq_lens_sum == 18
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu.tolist() == [5, 7]
    assert batch.seq_lens_sum == 12


def test_each_step_counts_one_draft_more_over_indices_of_its_own(
    draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(draft, "DraftStep", lambda _, **options: made.append(options))
    pool = SimpleNamespace(size=99, page_size=1)
    runner = SimpleNamespace(token_to_kv_pool=pool, device="cpu")
    draft.FlashInferMLACompactMultiStepDraftBackend(runner, 1, 4)
    assert [step["drafts"] for step in made] == [1, 2, 3]
    assert [step["kv_indptr_buf"] for step in made] == [0, 1, 2]
    assert len({id(step["table"]) for step in made}) == 1


def test_lengths_on_the_device_alone_are_enough(draft: Any) -> None:
    batch = SimpleNamespace(seq_lens=torch.tensor([5]), seq_lens_cpu=None, seq_lens_sum=5)
    assert draft.with_drafts(batch, 1).seq_lens.tolist() == [6]


def test_loose_arguments_of_an_older_runner_pass_through(draft: Any) -> None:
    batch = SimpleNamespace(batch_size=2, step=(), more={})
    assert draft.with_drafts(batch, 3) is batch
