"""The pool that upstream's forward methods see: read through the backend, written in one launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backend.conftest import Import
from tests.backend.upstream import MLATokenToKVPool

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOP = 0x7F


def as_it_is(rows: Any) -> Any:
    return rows


def layer_pool(overlay: Import, pool: Any, keys: Any = as_it_is) -> Any:
    form = overlay("pool.format").PoolFormat(torch.float8_e4m3fn, TOP, 0)
    return overlay("pool.layer_pool").LayerPool(pool, keys, form)


class Pool:
    """A pool of two layers under the ids 3 and 7, as a hybrid model has them; it notes reads."""

    size = 9

    def __init__(self) -> None:
        self.layers = {3: torch.zeros(4, 1, 576), 7: torch.ones(4, 1, 576)}
        self.reads: list[int] = []

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        self.reads.append(layer_id)
        return self.layers[layer_id]

    def set_mla_kv_buffer(self, layer_id: int, value: float) -> None:
        self.layers[layer_id].fill_(value)


def test_a_pool_may_map_layer_ids(overlay: Import) -> None:
    pool = Pool()
    seen = layer_pool(overlay, pool, lambda rows: rows + 1)
    assert [seen.get_key_buffer(layer).unique().tolist() for layer in (7, 3)] == [[2], [1]]
    assert pool.reads == [7, 3]


def test_each_read_asks_the_pool_anew(overlay: Import) -> None:
    """The pool may wait for a layer that is being loaded, or have been allocated anew."""
    pool = Pool()
    seen = layer_pool(overlay, pool)
    for value in (5.0, 6.0):
        pool.layers[3] = torch.full((4, 1, 576), value)
        assert seen.get_key_buffer(3) is pool.layers[3]
    assert pool.reads == [3, 3]


def test_all_else_is_the_pool_itself(overlay: Import) -> None:
    seen = layer_pool(overlay, Pool())
    assert seen.size == 9
    with pytest.raises(AttributeError):
        _ = seen.no_such_thing


class PlainPool(MLATokenToKVPool):
    """Two layers under the ids 3 and 7."""

    dtype = torch.float8_e4m3fn

    def __init__(self) -> None:
        super().__init__()
        self.layers = {layer: torch.zeros(4, 1, 576).to(self.dtype) for layer in (3, 7)}

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.layers[layer_id]


class ScaledPool(PlainPool):
    """A pool that writes in a way of its own."""

    def _write_mla_kv_buffer(self, *arguments: Any) -> None: ...


class MappedPool(PlainPool):
    """A pool that finds the layer in a way of its own."""

    def set_mla_kv_buffer(self, *arguments: Any) -> None:
        super().set_mla_kv_buffer(*arguments)


LAYER = SimpleNamespace(layer_id=3)
SLOTS = torch.tensor([3, 1])
KEYS = torch.arange(2 * 576).view(2, 1, 576).bfloat16() / 8
NOPE, ROPE = KEYS[..., :512], KEYS[..., 512:]


@pytest.mark.parametrize("location", [SLOTS, SimpleNamespace(loc=SLOTS)], ids=["bare", "wrapped"])
def test_new_keys_are_cast_and_written_to_their_slots(overlay: Import, location: Any) -> None:
    pool = PlainPool()
    layer_pool(overlay, pool).set_mla_kv_buffer(LAYER, location, NOPE, ROPE)
    expected = torch.zeros(4, 1, 576)
    expected[SLOTS] = KEYS.to(pool.dtype).float()
    assert torch.equal(pool.layers[3].float(), expected)
    assert not pool.layers[7].float().any()
    assert pool.written == []


@pytest.mark.parametrize(("default", "written"), [(0, False), (None, True)])
def test_the_slot_of_padded_tokens_is_written_where_upstream_writes_it(
    overlay: Import, monkeypatch: pytest.MonkeyPatch, default: int | None, written: bool
) -> None:
    pools, pool = overlay("upstream.pools"), PlainPool()
    if default is None:
        monkeypatch.setattr(pools, "set_mla_kv_buffer_triton", lambda *tensors: None)
    form = pools.pool_format(SimpleNamespace(token_to_kv_pool=pool, device="cpu"))
    seen = overlay("pool.layer_pool").LayerPool(pool, as_it_is, form)
    seen.set_mla_kv_buffer(LAYER, torch.tensor([0, 2]), NOPE, ROPE)
    rows = pool.layers[3].float().abs().sum((1, 2))
    assert (rows > 0).tolist() == [written, False, True, False]


def elements_apart(keys: torch.Tensor) -> torch.Tensor:
    return keys.transpose(0, 2).contiguous().transpose(0, 2)


@pytest.mark.parametrize(
    ("pool", "nope", "rope"),
    [
        (ScaledPool(), NOPE, ROPE),
        (MappedPool(), NOPE, ROPE),
        (PlainPool(), NOPE.to(torch.float8_e4m3fn), ROPE.to(torch.float8_e4m3fn)),
        (PlainPool(), elements_apart(NOPE), ROPE),
        (PlainPool(), NOPE, elements_apart(ROPE)),
    ],
    ids=["another cast", "another way to a layer", "cast already", "latent apart", "rope apart"],
)
def test_other_writes_are_left_to_the_pool(
    overlay: Import, pool: Any, nope: torch.Tensor, rope: torch.Tensor
) -> None:
    written = (LAYER, SLOTS, nope, rope)
    layer_pool(overlay, pool).set_mla_kv_buffer(*written)
    assert len(pool.written) == 1
    assert all(got is want for got, want in zip(pool.written[0], written, strict=True))
