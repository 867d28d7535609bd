"""Which slot stands in which row of the compact buffer, decided once a step on the device.

FlashInfer's planner reads lengths, never index values, so a plan made from pool slots is also the
plan for compact rows. After upstream has planned, the indices are rewritten in place: entry j,
which named a pool slot, then names the compact row that holds this slot. When several requests
share a prefix, their entries name the same rows, so a shared row is gathered once and the buffer
never needs more rows than the pool has.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


# What differs from step to step selects no other compiled kernel.
@triton.jit(
    do_not_specialize=["stamp", "capacity"],
    do_not_specialize_on_alignment=["indices", "total"],
)
def claim_kernel(
    indices, total, slots, count, row_of_slot, stamps, stamp, capacity, BLOCK: tl.constexpr
):
    """Give each distinct slot one row: whoever stamps a slot first in this step claims its row."""
    entries = tl.load(total)
    for block in range(tl.program_id(0), tl.cdiv(entries, BLOCK), tl.num_programs(0)):
        entry = block * BLOCK + tl.arange(0, BLOCK)
        active = entry < entries
        slot = tl.load(indices + entry, mask=active, other=0)
        seen = tl.atomic_xchg(stamps + slot, stamp, mask=active)
        first = active & (seen != stamp)
        claimed = first.to(tl.int32)
        start = tl.atomic_add(count, tl.sum(claimed))
        row = start + tl.cumsum(claimed) - 1
        tl.store(row_of_slot + slot, row, mask=first)
        tl.store(slots + row, slot, mask=first & (row < capacity))


@triton.jit(do_not_specialize_on_alignment=["indices", "total"])
def translate_kernel(indices, total, row_of_slot, BLOCK: tl.constexpr):
    """indices[j] = row_of_slot[indices[j]], in a launch of its own: every claim must be visible."""
    entries = tl.load(total)
    for block in range(tl.program_id(0), tl.cdiv(entries, BLOCK), tl.num_programs(0)):
        entry = block * BLOCK + tl.arange(0, BLOCK)
        active = entry < entries
        slot = tl.load(indices + entry, mask=active, other=0)
        tl.store(indices + entry, tl.load(row_of_slot + slot, mask=active), mask=active)


class SlotTable:
    """Scratch of the claims: which row a pool slot got, valid until the next step's are made.

    Users that take their steps one after another on one stream may share a table.
    """

    def __init__(self, pool_rows: int, device: torch.device) -> None:
        self.row_of_slot = torch.zeros(pool_rows, dtype=torch.int32, device=device)
        self.stamps = torch.zeros(pool_rows, dtype=torch.int32, device=device)
        self.stamp = 0

    def next_stamp(self) -> int:
        """A stamp that no entry carries; it is that of the step from now on."""
        self.stamp += 1
        if self.stamp == 2**31:
            self.stamps.zero_()
            self.stamp = 1
        return self.stamp


class CompactRows:
    """The rows of one step: `slots[:count]` are the distinct pool slots that the step reads.

    Addresses never change, so captured gathers stay valid; contents are set before each step.

    Attributes:
        slots: [capacity] int32, pool slot of each compact row.
        count: [1] int32, distinct slots of the step; above capacity when it does not fit.
        table: the scratch of its claims.
    """

    def __init__(self, capacity: int, table: SlotTable, programs: int) -> None:
        device = table.stamps.device
        self.capacity = capacity
        self.slots = torch.zeros(capacity, dtype=torch.int32, device=device)
        self.count = torch.zeros(1, dtype=torch.int32, device=device)
        self.table = table
        self._grid = (programs,)

    def claim(self, indices: torch.Tensor, total: torch.Tensor) -> None:
        """Give each distinct slot among `indices[:total]` (int32) a row; `indices` stays."""
        stamp = self.table.next_stamp()
        self.count.zero_()
        claim_kernel[self._grid](
            indices,
            total,
            self.slots,
            self.count,
            self.table.row_of_slot,
            self.table.stamps,
            stamp,
            self.capacity,
            BLOCK=BLOCK,
        )

    def translate(self, indices: torch.Tensor, total: torch.Tensor) -> None:
        """Replace each claimed slot in `indices[:total]` by its row."""
        translate_kernel[self._grid](indices, total, self.table.row_of_slot, BLOCK=BLOCK)
