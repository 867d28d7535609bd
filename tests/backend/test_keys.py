"""The pool that upstream's forward methods see: read through the backend, else the pool itself."""

from __future__ import annotations

import pytest
import torch

from tests.backend.conftest import Import


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
    reader = overlay("keys").KeyReader(pool, lambda rows: rows + 1)
    assert [reader.get_key_buffer(layer).unique().tolist() for layer in (7, 3)] == [[2], [1]]
    assert pool.reads == [7, 3]


def test_each_read_asks_the_pool_anew(overlay: Import) -> None:
    """The pool may wait for a layer that is being loaded, or have been allocated anew."""
    pool = Pool()
    reader = overlay("keys").KeyReader(pool, lambda rows: rows)
    for value in (5.0, 6.0):
        pool.layers[3] = torch.full((4, 1, 576), value)
        assert reader.get_key_buffer(3) is pool.layers[3]
    assert pool.reads == [3, 3]


def test_all_else_is_the_pool_itself(overlay: Import) -> None:
    pool = Pool()
    reader = overlay("keys").KeyReader(pool, lambda rows: rows)
    reader.set_mla_kv_buffer(3, 8.0)
    assert pool.layers[3].unique().tolist() == [8]
    assert reader.size == 9
    with pytest.raises(AttributeError):
        _ = reader.no_such_thing


def test_keys_that_are_read_directly_are_neither_cast_nor_sliced(overlay: Import) -> None:
    rows = torch.zeros(4, 1, 576, dtype=torch.uint8)
    keys = overlay("keys").UncastKeys(rows).to(torch.bfloat16)
    assert keys[:, :, :512].rows is rows
    assert keys[:, :, 512:].rows is rows
