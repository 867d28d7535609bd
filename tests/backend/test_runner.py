"""What is read from a runner and its pool."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backend.conftest import Import
from tests.backend.upstream import CONTEXT


class MLATokenToKVPool:
    size, page_size = 1000, 64
    dtype = torch.float8_e5m2


class DSATokenToKVPool(MLATokenToKVPool):
    kv_cache_dim, use_dsa = 656, True


class HybridLinearKVPool:
    """Attention layers in a pool of their own, beside the state of linear attention."""

    size, page_size = 1000, 64
    dtype = torch.bfloat16  # of the state
    full_kv_pool = MLATokenToKVPool()


def runner(pool: Any) -> Any:
    model = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=64)
    return SimpleNamespace(model_config=model, token_to_kv_pool=pool)


def test_a_hybrid_models_facts_are_those_of_its_attention_layers(overlay: Import) -> None:
    facts = overlay("upstream.runner")
    found = facts.runner_facts(runner(HybridLinearKVPool()))
    assert found == facts.runner_facts(runner(MLATokenToKVPool()))
    assert (found.pool_class, found.pool_dtype) == ("MLATokenToKVPool", "float8_e5m2")


def test_a_dsa_pool_tells_its_rows(overlay: Import) -> None:
    found = overlay("upstream.runner").runner_facts(runner(DSATokenToKVPool()))
    assert (found.is_dsa, found.kv_cache_dim) == (True, 656)


def test_no_speculation_is_topk_0_and_ngrams_branches_are_its_topk(
    overlay: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = overlay("upstream.runner")
    assert facts.runner_facts(runner(MLATokenToKVPool())).topk == 0
    monkeypatch.setattr(CONTEXT["get_spec"], "speculative_eagle_topk", 10)
    assert facts.runner_facts(runner(MLATokenToKVPool())).topk == 10


def test_a_server_without_a_prefill_graph_has_it_disabled(
    overlay: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = overlay("upstream.runner")
    assert facts.runner_facts(runner(MLATokenToKVPool())).prefill_graph == "breakable"
    monkeypatch.setattr(CONTEXT["get_exec"].graph.cuda_graph_config, "prefill", None)
    assert facts.runner_facts(runner(MLATokenToKVPool())).prefill_graph == "disabled"


def test_a_layer_has_a_page_of_padding_before_its_slots(overlay: Import) -> None:
    assert overlay("upstream.pools").pool_rows(MLATokenToKVPool()) == 1064


@pytest.mark.parametrize(
    ("variable", "fact"),
    [
        ("FLASHINFER_ALLOW_EXPERIMENTAL_AUTO_BACKENDS", "experimental"),
        ("SGLANG_ENABLE_OVERLAP_PLAN_STREAM", "plan_stream"),
        ("SGLANG_ENABLE_METADATA_GLUE_GRAPH", "glue_graph"),
    ],
)
def test_the_environment_tells_what_is_switched_on(
    overlay: Import, monkeypatch: pytest.MonkeyPatch, variable: str, fact: str
) -> None:
    facts = overlay("upstream.runner")
    monkeypatch.delenv(variable, raising=False)
    assert not getattr(facts.runner_facts(runner(MLATokenToKVPool())), fact)
    monkeypatch.setenv(variable, "1")
    assert getattr(facts.runner_facts(runner(MLATokenToKVPool())), fact)
