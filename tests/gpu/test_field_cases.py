"""Faults that were reported for FP8 caches elsewhere, as far as no other file has them."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.compare import assert_same_bits, reference, rms_error
from tests.gpu.engine import DEVICE, Engine, Shape
from tests.gpu.steps import decode_batch, run_eager

LENGTHS = [130, 1, 700, 64]
# Rounding of queries' products and of the output to bfloat16, several times over.
RELATIVE = 1e-2


def assert_near(actual: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    size = rms_error(exact, [torch.zeros_like(output) for output in exact])
    assert rms_error(actual, exact) <= RELATIVE * size


@pytest.mark.parametrize("kernel", ["fa2", "fa3"])
def test_halves_of_the_buffer_are_read_by_their_stride(kernel: str) -> None:
    """Latent and rope are slices of rows of 576, in FlashInfer's kernel for any card too."""
    if kernel == "fa3" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("fa3 is for SM90")
    engine = Engine(Shape())
    pair = engine.pair()
    for backend in pair:
        flashinfer = type(backend.decode_wrapper)
        backend.decode_wrapper = flashinfer(backend.workspace_buffer, backend=kernel)
    batch = decode_batch(engine, engine.place(LENGTHS), LENGTHS)
    inputs = engine.inputs(4)
    expected, actual = (run_eager(engine, backend, batch, inputs) for backend in pair)
    assert_same_bits(actual, expected)
    assert_near(actual, reference(engine, batch, inputs))


@pytest.mark.parametrize("scale", [None, 0.5, 2.0])
def test_rows_are_written_and_read_at_unit_scale_whatever_the_layer_says(
    scale: float | None,
) -> None:
    engine = Engine(Shape())
    for layer in engine.layers:
        layer.k_scale_float = layer.v_scale_float = scale
        layer.k_scale = None if scale is None else torch.tensor(scale, device=DEVICE)
    stock, compact = engine.pair()
    batch = decode_batch(engine, engine.place(LENGTHS), LENGTHS)
    inputs = engine.inputs(4)
    actual = run_eager(engine, compact, batch, inputs)
    assert_same_bits(actual, run_eager(engine, stock, batch, inputs))
    assert_near(actual, reference(engine, batch, inputs))
    for layer, step in enumerate(inputs):
        written = engine.pool.kv_buffer[layer][batch.out_cache_loc].view(engine.shape.dtype)
        keys = torch.cat([step.k_nope, step.k_rope], -1)
        torch.testing.assert_close(written.float(), keys.float(), rtol=0.07, atol=0.01)
