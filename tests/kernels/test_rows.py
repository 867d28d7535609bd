"""Slots to compact rows: each distinct slot gets one row, and each entry names its slot's row."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.gather.rows import (
    BLOCK,
    CompactRows,
    SlotTable,
)

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

POOL = 5000
TAIL = 2 * BLOCK  # entries after those in use, which stay as they are
STALE = 4321


def new_rows(capacity: int = POOL, table: SlotTable | None = None) -> CompactRows:
    return CompactRows(capacity, table or SlotTable(POOL, torch.device("cpu")), programs=4)


def entries(slots: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the planner leaves behind: an index buffer with a stale tail, the total, the slots."""
    named = torch.tensor(list(slots), dtype=torch.int32)
    tail = torch.full((TAIL,), STALE, dtype=torch.int32)
    return torch.cat([named, tail]), torch.tensor([len(named)], dtype=torch.int32), named


def claim(rows: CompactRows, slots: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rewritten entries, and the slots that they named before."""
    indices, total, named = entries(slots)
    rows.claim(indices, total)
    assert torch.equal(indices[: len(named)], named), "claiming must leave the entries alone"
    rows.translate(indices, total)
    assert (indices[len(named) :] == STALE).all()
    return indices[: len(named)], named


def shuffled(seed: int, count: int) -> list[int]:
    return torch.randperm(POOL, generator=torch.Generator().manual_seed(seed))[:count].tolist()


@pytest.mark.parametrize("seed", [1, 2])
def test_each_entry_names_the_row_that_holds_its_slot(seed: int) -> None:
    prefix = shuffled(seed, 900)
    rows = new_rows()
    # 64 requests behind one prefix: blocks of entries that overlap in every way.
    slots = [slot for request in range(6) for slot in [*prefix, POOL - 1 - request]]
    got, named = claim(rows, slots)
    assert torch.equal(rows.slots[got.long()], named)


def test_the_count_is_the_number_of_distinct_slots() -> None:
    prefix = shuffled(3, BLOCK + 7)
    rows = new_rows()
    claim(rows, prefix * 5)
    assert rows.count.item() == len(prefix)
    assert sorted(rows.slots[: len(prefix)].tolist()) == sorted(prefix)


@pytest.mark.parametrize("repeats", [1, 2, BLOCK, BLOCK + 1])
def test_one_slot_named_many_times_takes_one_row(repeats: int) -> None:
    rows = new_rows()
    got, _ = claim(rows, [0] * repeats)
    assert rows.count.item() == 1
    assert not got.any()


def test_the_rows_of_the_last_step_do_not_leak_into_this_one() -> None:
    rows = new_rows()
    claim(rows, [10, 11, 12, 13])
    got, named = claim(rows, [13, 99, 13])
    assert rows.count.item() == 2
    assert torch.equal(rows.slots[got.long()], named)


def test_nothing_to_read_gives_a_count_of_zero() -> None:
    rows = new_rows()
    claim(rows, [5, 6])
    claim(rows, [])
    assert rows.count.item() == 0


def test_more_slots_than_capacity_are_counted_but_not_written_past_the_end() -> None:
    capacity, guard = 100, 512
    rows = new_rows(capacity)
    whole = torch.full((capacity + 2 * guard,), STALE, dtype=torch.int32)
    rows.slots = whole[guard : guard + capacity]
    indices, total, named = entries(shuffled(5, 300))
    rows.claim(indices, total)
    rows.translate(indices, total)
    assert rows.count.item() == 300, "a step that does not fit must be recognisable"
    assert (whole[:guard] == STALE).all()
    assert (whole[guard + capacity :] == STALE).all()
    got = indices[:300]
    fits = got < capacity
    assert torch.equal(rows.slots[got[fits].long()], named[fits])


def test_stamps_that_run_out_start_over() -> None:
    table = SlotTable(POOL, torch.device("cpu"))
    rows = new_rows(table=table)
    claim(rows, [1, 2, 40])  # slot 40 keeps stamp 1, which comes again after the wrap
    table.stamp = 2**31 - 3
    for slots in ([1, 2], [2, 3, 2], [3, 40, 1], [1, 5]):
        got, named = claim(rows, slots)
        assert rows.count.item() == len(set(slots))
        assert torch.equal(rows.slots[got.long()], named)
    assert 0 < table.stamp < 10


def test_two_users_may_share_a_table_one_after_the_other() -> None:
    table = SlotTable(POOL, torch.device("cpu"))
    first, second = new_rows(table=table), new_rows(table=table)
    got_first, named_first = claim(first, [7, 8, 7, 9])
    got_second, named_second = claim(second, [9, 8, 9])
    assert torch.equal(first.slots[got_first.long()], named_first)
    assert torch.equal(second.slots[got_second.long()], named_second)
    assert (first.count.item(), second.count.item()) == (3, 2)


def test_addresses_never_change() -> None:
    rows = new_rows()
    before = (rows.slots.data_ptr(), rows.count.data_ptr())
    claim(rows, [3, 3, 4])
    assert (rows.slots.data_ptr(), rows.count.data_ptr()) == before
