"""CPU cores for engines that are up at once: a busy neighbour on its core is timed with an engine.

sglang's schedulers poll without pause, and an eager prefill takes as long as its host takes to
launch kernels.
"""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def shares(count: int, topology: Path = TOPOLOGY) -> list[frozenset[int]]:
    """The CPUs of this process for `count` engines: whole physical cores, as many each, none twice.

    With fewer cores than engines, each may use them all.
    """
    mine = frozenset(os.sched_getaffinity(0))
    cores = sorted({_siblings(cpu, topology) & mine for cpu in mine}, key=min)
    size = len(cores) // count
    if not size:
        return [mine] * count
    return [frozenset[int]().union(*cores[k * size : (k + 1) * size]) for k in range(count)]


def _siblings(cpu: int, topology: Path) -> frozenset[int]:
    """Hardware threads of the core that `cpu` is one of; itself, where the kernel does not tell."""
    try:
        told = (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return frozenset({cpu})
    ranges = [part.split("-") for part in told.strip().split(",")]
    return frozenset(k for ends in ranges for k in range(int(ends[0]), int(ends[-1]) + 1))
