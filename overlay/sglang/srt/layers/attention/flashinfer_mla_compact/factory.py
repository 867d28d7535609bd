"""Builds the backend that a runner gets under the name `flashinfer_mla_compact`."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.layers.attention.attention_registry import create_flashinfer_backend

from . import policy, registration, support
from .upstream.pools import pool_rows
from .upstream.runner import runner_facts, verified_tokens

logger = logging.getLogger(__name__)


def create_backend(runner: Any) -> Any:
    """The attention backend of `runner`.

    An MHA-shaped model (a draft may inherit the name) gets FlashInfer's MHA backend, as under
    `flashinfer`; a BF16 pool and the strategy "stock" get sglang's own MLA backend.

    Raises:
        ValueError: the mode is not served; the message names it and the remedy.
    """
    registration.register()
    if not _is_compact(runner):
        return create_flashinfer_backend(runner)
    from .backend import FlashInferMLACompactAttnBackend

    backend = FlashInferMLACompactAttnBackend(runner)
    _announce(runner, [backend])
    return backend


def create_draft_decode_backend(draft: Any) -> Any:
    """The multi-step decode backend for upstream's `DraftBackendFactory` instance `draft`."""
    registration.register()
    runner = draft.draft_model_runner
    arguments = (runner, draft.topk, draft.speculative_num_steps)
    if _is_compact(runner):
        from .draft import FlashInferMLACompactMultiStepDraftBackend

        backend = FlashInferMLACompactMultiStepDraftBackend(*arguments)
        _announce(runner, backend.attn_backends)
        return backend
    if runner.use_mla_backend:
        from sglang.srt.layers.attention.flashinfer_mla_backend import (
            FlashInferMLAMultiStepDraftBackend as MultiStepDraftBackend,
        )
    else:
        from sglang.srt.layers.attention.flashinfer_backend import (
            FlashInferMultiStepDraftBackend as MultiStepDraftBackend,
        )
    return MultiStepDraftBackend(*arguments)


def _is_compact(runner: Any) -> bool:
    """Whether the runner's pool is read compactly; refuses what can't be served."""
    if not runner.use_mla_backend:
        return False
    settings = policy.read_settings()
    facts = runner_facts(runner)
    if settings.strategy == "stock" or not support.casts_keys(facts):
        logger.info(
            "%s %s: stock FlashInfer MLA (%s pool, strategy %s)",
            support.NAME,
            support.VERSION,
            facts.pool_dtype,
            settings.strategy,
        )
        return False
    reasons = support.refusals(facts)
    if reasons:
        raise ValueError(f"{support.NAME}: {' Also: '.join(reasons)}")
    return True


def _announce(runner: Any, steps: list[Any]) -> None:
    """One line for a backend, or for the backends of a draft's steps together."""
    facts, readings = runner_facts(runner), steps[0].readings
    logger.info(
        "%s %s: %s pool of %d rows, compact buffer of %d rows = %d bytes, slots %d bytes, "
        "claims %d bytes, splits %d bytes, decode by %s: %s",
        support.NAME,
        support.VERSION,
        facts.pool_dtype,
        pool_rows(runner.token_to_kv_pool),
        readings.gathered.rows.capacity,
        *(_held_bytes(steps, part) for part in ("buffer", "slots", "claims", "splits")),
        *readings.decode_strategy,
    )
    if verified_tokens():
        logger.info("%s: verify by %s: %s", support.NAME, *readings.verify_strategy)
    for notice in support.notices(facts):
        logger.warning("%s: %s", support.NAME, notice)


def _held_bytes(steps: list[Any], part: str) -> int:
    """Bytes on the device; a tensor that several steps share counts once."""
    tensors = {one for step in steps for one in step.readings.held()[part]}
    return sum(tensor.nbytes for tensor in tensors)
