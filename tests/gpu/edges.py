"""Run every kernel at the ends of its ranges, in memory that ends there too, for a memory checker.

  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 1 python -m tests.gpu.edges

Prints a line a kernel. The pool's last row lies beyond 2**31 bytes. --without-mbarriers leaves out
the kernel whose warps hand tiles over at mbarriers: racecheck reports each of them, as it does not
take one thread's arrival there for that of all that it waited for.

exit status: 0 done; 1 a result is wrong; else the checker's own
"""

from __future__ import annotations

import sys
from itertools import accumulate, product
from typing import Any

import torch

from bench.overlay import DIRECT, load

POOL = 3_800_000
CAPACITY = 70
COUNTS = (0, 1, CAPACITY - 1, CAPACITY, CAPACITY + 1)
LENGTHS = ([0], [1], [64], [65], [0, 1], [129, 0, 300])
DEVICE = torch.device("cuda", 0)


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values or (0,), dtype=torch.int32, device=DEVICE)


def last_slots(count: int) -> torch.Tensor:
    return integers(*range(POOL - count, POOL))


def make_pool() -> torch.Tensor:
    """[POOL, 1, 576] of FP8, of which only the last rows are written: only they are read."""
    pool = torch.empty(POOL, 1, 576, dtype=torch.uint8, device=DEVICE)
    codes = torch.arange(500 * 576, dtype=torch.int32) * 7919 % 0x7F
    pool[-500:] = codes.view(500, 1, 576).to(torch.uint8).to(DEVICE)
    return pool.view(torch.float8_e4m3fn)


def gather_at_edges(pool: torch.Tensor) -> None:
    gather: Any = load("launch", "gather")
    for count in COUNTS:
        slots = last_slots(CAPACITY)
        out = torch.zeros(CAPACITY, 1, 576, dtype=torch.bfloat16, device=DEVICE)
        gather.gather_rows(pool, slots, integers(count), out, gather.grid_programs(DEVICE))
        used = min(count, CAPACITY)
        assert torch.equal(out[:used].cpu(), pool[POOL - CAPACITY :][:used].cpu().bfloat16())
        assert not bool(out[used:].any())


def rows_at_edges(_pool: torch.Tensor) -> None:
    rows: Any = load("rows")
    table = rows.SlotTable(POOL, DEVICE)
    for count in COUNTS:
        compact = rows.CompactRows(CAPACITY, table, 16)
        claimed = last_slots(count)
        compact.claim(claimed, integers(count))
        compact.translate(claimed, integers(count))
        assert int(compact.count) == count
        assert sorted(claimed[:count].tolist()) == list(range(count))
        found = compact.find(last_slots(count)[:count], -1).rows
        assert found.tolist() == [row if row < CAPACITY else -1 for row in claimed[:count]]


def direct_at_edges(pool: torch.Tensor) -> None:
    direct: Any = load(*DIRECT)
    card = torch.cuda.get_device_capability()
    # Those of both heads that follow, of 64 rows, of a card with less shared memory, and the plain.
    configs = [None, direct.configure(card, 64)]
    configs += [direct.configure(other, 32) for other in ((12, 0), None)]
    if "--without-mbarriers" in sys.argv:
        configs = [config for config in configs if config is None or config.kernel != "wgmma"]
    for config, heads, lengths in product(configs, (16, 20), LENGTHS):
        requests = len(lengths)
        space = direct.make_workspace(heads, requests, DEVICE, config=config)
        direct.plan(space, integers(0, *accumulate(lengths)))
        query = torch.ones(requests, heads, 576, dtype=torch.bfloat16, device=DEVICE)
        out, lse = torch.zeros_like(query[..., :512]), query.new_zeros(query.shape[:2]).float()
        slots = last_slots(sum(lengths))
        nope, rope = query[..., :512], query[..., 512:]
        direct.attend(nope, rope, pool, slots, space, sm_scale=0.01, out=out, lse=lse)
        empty = torch.tensor(lengths) == 0
        assert torch.equal(lse.cpu().isneginf().all(1), empty)
        assert torch.equal(out.cpu().flatten(1).any(1), ~empty)


def fill_at_edges(pool: torch.Tensor) -> None:
    fill: Any = load("launch", "gather", "rows", "write", "fill")
    rows, write = load("rows"), load("launch", "write")
    for count, new in product(COUNTS, (0, 1, CAPACITY)):
        compact = rows.CompactRows(CAPACITY, rows.SlotTable(POOL, DEVICE), 16)
        compact.claim(last_slots(count), integers(count))
        slots = torch.cat([last_slots(count)[max(0, count - new) : count], integers(0, 0)])
        keys = torch.ones(len(slots), 1, 576, dtype=torch.bfloat16, device=DEVICE)
        nope, rope = keys[..., :512], keys[..., 512:]
        out = torch.zeros(CAPACITY, 1, 576, dtype=torch.bfloat16, device=DEVICE)
        top = write.top_code(pool.dtype, DEVICE)
        step = fill.Fill(compact.find(slots, -1), compact, out, 16, pool.dtype, top, -1)
        step(write.NewKeys(pool, slots, nope, rope, top, -1))
        used = min(count, CAPACITY)
        named = compact.slots[:used].long()
        named = torch.maximum(named, ~named)
        assert torch.equal(out[:used].cpu(), pool[named].cpu().bfloat16())
        assert not bool(out[used:].any())


def write_at_edges(pool: torch.Tensor) -> None:
    write: Any = load("launch", "write")
    top = write.top_code(pool.dtype, DEVICE)
    for count in (0, 1, CAPACITY):
        keys = torch.full((count, 1, 576), float("inf"), dtype=torch.bfloat16, device=DEVICE)
        slots = last_slots(count)[:count]
        write.write_rows(write.NewKeys(pool, slots, keys[..., :512], keys[..., 512:], top, -1))
        assert bool((pool[POOL - count :].view(torch.uint8) == top).all())


# The last one leaves NaN in the pool, which equals nothing.
CHECKS = (gather_at_edges, rows_at_edges, direct_at_edges, fill_at_edges, write_at_edges)


def main() -> None:
    pool = make_pool()
    for check in CHECKS:
        check(pool)
        torch.cuda.synchronize()
        print(f"{check.__name__}: done", flush=True)


if __name__ == "__main__":
    main()
