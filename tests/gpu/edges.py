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

from bench.overlay import load

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
    gather: Any = load("gather.gather")
    for count in COUNTS:
        slots = last_slots(CAPACITY)
        out = torch.zeros(CAPACITY, 1, 576, dtype=torch.bfloat16, device=DEVICE)
        gather.gather_rows(pool, slots, integers(count), out, gather.grid_programs(DEVICE))
        used = min(count, CAPACITY)
        assert torch.equal(out[:used].cpu(), pool[POOL - CAPACITY :][:used].cpu().bfloat16())
        assert not bool(out[used:].any())


def rows_at_edges(_pool: torch.Tensor) -> None:
    rows: Any = load("gather.rows")
    table = rows.SlotTable(POOL, DEVICE)
    for count in COUNTS:
        compact = rows.CompactRows(CAPACITY, table, 16)
        claimed = last_slots(count)
        compact.claim(claimed, integers(count))
        compact.translate(claimed, integers(count))
        assert int(compact.count) == count
        assert sorted(claimed[:count].tolist()) == list(range(count))


def direct_at_edges(pool: torch.Tensor) -> None:
    direct: Any = load("direct.attend")
    known: Any = load("direct.configs")
    card = torch.cuda.get_device_capability()
    # Those of both heads that follow, of 64 rows, of a card with less shared memory, and the plain.
    configs = [None, known.configure(card, 64)]
    configs += [known.configure(other, 32) for other in ((12, 0), None)]
    if "--without-mbarriers" in sys.argv:
        configs = [config for config in configs if config is None or config.kernel != "wgmma"]
    for config, heads, lengths in product(configs, (16, 20), LENGTHS):
        requests = len(lengths)
        space = load("direct.workspace").make_workspace(heads, requests, DEVICE, config=config)
        direct.plan(space, integers(0, *accumulate(lengths)))
        query = torch.ones(requests, heads, 576, dtype=torch.bfloat16, device=DEVICE)
        out, lse = torch.zeros_like(query[..., :512]), query.new_zeros(query.shape[:2]).float()
        slots = last_slots(sum(lengths))
        nope, rope = query[..., :512], query[..., 512:]
        direct.attend(nope, rope, pool, slots, space, sm_scale=0.01, out=out, lse=lse)
        empty = torch.tensor(lengths) == 0
        assert torch.equal(lse.cpu().isneginf().all(1), empty)
        assert torch.equal(out.cpu().flatten(1).any(1), ~empty)


def write_at_edges(pool: torch.Tensor) -> None:
    form: Any = load("pool.format")
    top = form.top_code(pool.dtype, DEVICE)
    layout = form.PoolFormat(pool.dtype, top, -1)
    write: Any = load("pool.write")
    for count in (0, 1, CAPACITY):
        keys = torch.full((count, 1, 576), float("inf"), dtype=torch.bfloat16, device=DEVICE)
        slots = last_slots(count)[:count]
        write.write_rows(pool, slots, keys[..., :512], keys[..., 512:], layout)
        assert bool((pool[POOL - count :].view(torch.uint8) == top).all())


# The last one leaves NaN in the pool, which equals nothing.
CHECKS = (gather_at_edges, rows_at_edges, direct_at_edges, write_at_edges)


def main() -> None:
    pool = make_pool()
    for check in CHECKS:
        check(pool)
        torch.cuda.synchronize()
        print(f"{check.__name__}: done", flush=True)


if __name__ == "__main__":
    main()
