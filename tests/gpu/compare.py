"""Results compared bit for bit, or with the same step in float64."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.engine import NOPE, ROPE, Engine, Inputs
from tests.kernels.reference import attention

# How much further from float64 than stock the direct kernel may be.
WORST = 1.05


def assert_same_bits(
    actual: list[torch.Tensor], expected: list[torch.Tensor], what: str = "compact against stock"
) -> None:
    """Equal bit for bit in every layer; on failure the first coordinate that differs."""
    assert len(actual) == len(expected)
    for layer, (got, want) in enumerate(zip(actual, expected, strict=True)):
        assert got.shape == want.shape
        differs = got.view(torch.int16) != want.view(torch.int16)
        if bool(differs.any()):
            token, column = torch.nonzero(differs)[0].tolist()
            raise AssertionError(
                f"{what}: layer {layer}, token {token}, head {column // NOPE}, "
                f"column {column % NOPE}: {got[token, column].item()!r} "
                f"is not {want[token, column].item()!r}; {int(differs.sum())} values differ"
            )


def differs_in_bits(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return any(not torch.equal(got, want) for got, want in zip(actual, expected, strict=True))


def reference(engine: Engine, batch: Any, inputs: list[Inputs]) -> list[torch.Tensor]:
    """`attention` of the step in float64, from the pool as it is after the step wrote its keys."""
    new = batch.extend_seq_lens_cpu or [1] * batch.batch_size
    verifying = batch.forward_mode.is_target_verify()
    lengths = [
        int(length) + (count if verifying else 0)
        for length, count in zip(batch.seq_lens_cpu, new, strict=True)
    ]
    slots = engine.slots_of(batch.req_pool_indices, lengths)
    outputs = []
    for layer, step in zip(engine.layers, inputs, strict=True):
        keys = engine.pool.get_key_buffer(layer.layer_id)
        parts = zip(slots, step.q_nope.split(list(new)), step.q_rope.split(list(new)), strict=True)
        outputs.append(torch.cat([attend(engine, keys, *part) for part in parts]))
    return outputs


def attend(
    engine: Engine,
    keys: torch.Tensor,
    slots: torch.Tensor,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
) -> torch.Tensor:
    """One request of `reference`; [new tokens, heads * 512] float64."""
    new = len(q_nope)
    rows = keys.view(torch.uint8)[slots].view(engine.shape.dtype).squeeze(1)
    query = torch.cat([q_nope.view(new, -1, NOPE), q_rope.view(new, -1, ROPE)], -1)
    return attention(query, rows, engine.layers[0].scaling)[0].flatten(1)


def rms_error(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Root mean square of the difference, over all layers."""
    squares = [
        (got.double() - want).square().mean() for got, want in zip(actual, expected, strict=True)
    ]
    return float(torch.stack(squares).mean().sqrt())


def assert_as_close_as_stock(
    actual: list[torch.Tensor], stock: list[torch.Tensor], exact: list[torch.Tensor], what: str
) -> None:
    assert all(output.isfinite().all() for output in actual), what
    error, allowed = rms_error(actual, exact), WORST * rms_error(stock, exact)
    assert error <= allowed, f"{what}: error {error:.3e} against float64, allowed {allowed:.3e}"
