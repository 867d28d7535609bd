"""Finds the cast of the whole KV pool among the copies of a decode step."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from diagnosetool.kernels import (
    FLASHINFER_MLA,
    elements_per_thread,
    family,
    is_attention,
    is_copy,
    short_name,
)
from diagnosetool.sample import Kernel
from diagnosetool.steps import Step, Steps
from diagnosetool.timeline import Copied

MLA_ROW = 576
FP8_BYTES, BF16_BYTES = 1, 2
# A smaller tensor is no pool: 1,800 rows of 576.
SMALLEST_POOL_ELEMENTS = 1 << 20
# Where no size is recorded, time must tell: copies of one size take one time.
SHORTEST_CAST_US = 20.0
LARGEST_SPREAD = 0.25
EVERY_LAYER = 0.9
# Peak memory bandwidth in TB/s, from the vendor's data sheets: more than it can't have moved.
PEAK_TB_S = {
    "B300": 8.0,
    "B200": 8.0,
    "H200": 4.8,
    "H20": 4.0,
    "H100": 3.35,
    "A100": 2.04,
    "RTX PRO 6000": 1.79,
    "RTX 5090": 1.79,
    "RTX 4090": 1.01,
    "L40": 0.86,
}

Copies = Mapping[int, Copied]


@dataclass(frozen=True)
class PoolCast:
    """The copies of a pool's size that every layer of every decode step runs.

    Attributes:
        time: microseconds a step that they take on the GPU.
        spread: (95th - 5th percentile) / median of the copies' durations over layers and steps.
        kernels: short names of the copy kernels.
        names: their whole names.
        operator: "aten::copy_" where the trace recorded the operator.
        elements: elements that a layer copies; None where neither shape nor grid is recorded.
        rows: pool rows, where a row is known to have MLA_ROW elements.
        evidence: "recorded shapes", "launch grid" or "duration": what the size rests on.
        dtypes: such as "Float8_e4m3fn to BFloat16"; "" where the trace does not tell.
        reader: family of the attention kernels that follow the copies; "" for none known.
    """

    time: float
    spread: float
    kernels: tuple[str, ...]
    names: frozenset[str]
    operator: str
    elements: int | None
    rows: int | None
    evidence: str
    dtypes: str
    reader: str

    @property
    def bytes_read(self) -> int | None:
        """Bytes that a layer's cast reads: one for each FP8 element."""
        return None if self.elements is None else self.elements * FP8_BYTES

    @property
    def bytes_written(self) -> int | None:
        """Bytes that a layer's cast writes: two for each BF16 element."""
        return None if self.elements is None else self.elements * BF16_BYTES


def find_cast(steps: Steps, copies: Copies) -> PoolCast | None:
    """The pool's cast in `steps`, or None where there is none.

    A cast of the pool is launched with one size, large, as often as there are layers, whatever
    the context. PyTorch splits one that writes more than 2 GiB: then a layer has several.
    """
    groups: dict[tuple[str, int], list[Kernel]] = defaultdict(list)
    for step in steps.steps:
        for kernel in filter(lambda kernel: is_large_copy(kernel, copies), step.forward):
            groups[kernel.name, kernel.threads].append(kernel)
    enough = EVERY_LAYER * steps.layers * len(steps.steps)
    chosen = [group for group in groups.values() if len(group) >= enough and _same_size(group)]
    if not chosen:
        return None
    return _describe(chosen, steps.steps, steps.layers, copies)


def most_bytes(device: str, microseconds: float) -> int | None:
    """The most bytes that `device` can move in that time; None for a device not known here."""
    peak = next((speed for name, speed in PEAK_TB_S.items() if name in device), None)
    return None if peak is None else round(peak * microseconds * 1e6)


def is_large_copy(kernel: Kernel, copies: Copies) -> bool:
    """Whether a kernel copies as much as one layer of a KV pool holds, from FP8 where recorded."""
    recorded = copies.get(kernel.external)
    if not is_copy(kernel.name) or (recorded and not recorded.source.startswith("Float8")):
        return False
    elements = _elements(kernel, copies)
    if elements is None:
        return kernel.duration >= SHORTEST_CAST_US
    return elements >= SMALLEST_POOL_ELEMENTS


def _describe(
    groups: Sequence[list[Kernel]], steps: Sequence[Step], layers: int, copies: Copies
) -> PoolCast:
    kernels = [kernel for group in groups for kernel in group]
    names = frozenset(kernel.name for kernel in kernels)
    recorded = {k.external: copies[k.external] for k in kernels if k.external in copies}
    reader = _reader(steps, names, copies)
    elements, evidence = _layer_elements(kernels, recorded, layers * len(steps))
    return PoolCast(
        time=sum(kernel.duration for kernel in kernels) / len(steps),
        spread=max(_spread(group) for group in groups),
        kernels=tuple(sorted({short_name(name) for name in names})),
        names=names,
        operator="aten::copy_" if recorded else "",
        elements=elements,
        rows=_rows(elements, recorded, reader),
        evidence=evidence,
        dtypes=next((f"{copy.source} to {copy.target}" for copy in recorded.values()), ""),
        reader=reader,
    )


def _elements(kernel: Kernel, copies: Copies) -> int | None:
    """Elements of one copy kernel: its operator's shape, else its launch grid, rounded up."""
    if recorded := copies.get(kernel.external):
        return math.prod(recorded.shape)
    per_thread = elements_per_thread(kernel.name)
    return kernel.threads * per_thread if per_thread and kernel.threads else None


def _layer_elements(
    kernels: Sequence[Kernel], recorded: Copies, layer_runs: int
) -> tuple[int | None, str]:
    if recorded and all(kernel.external in recorded for kernel in kernels):
        total = sum(math.prod(copy.shape) for copy in recorded.values())
        return total // layer_runs, "recorded shapes"
    counts = [_elements(kernel, {}) for kernel in kernels]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None, "duration"
    return sum(known) // layer_runs, "launch grid"


def _rows(elements: int | None, recorded: Copies, reader: str) -> int | None:
    """A grid exceeds the elements by less than a block of 512, so that 576 divides it as well."""
    widths = {copy.shape[-1] for copy in recorded.values() if copy.shape}
    is_mla = widths == {MLA_ROW} if widths else reader == FLASHINFER_MLA
    return elements // MLA_ROW if elements is not None and is_mla else None


def _same_size(group: Sequence[Kernel]) -> bool:
    return group[0].threads > 0 or _spread(group) <= LARGEST_SPREAD


def _spread(group: Sequence[Kernel]) -> float:
    durations = [kernel.duration for kernel in group]
    if len(durations) < 2:
        return 0.0
    cuts = quantiles(durations, n=20, method="inclusive")
    return (cuts[-1] - cuts[0]) / median(durations)


def _reader(steps: Sequence[Step], names: frozenset[str], copies: Copies) -> str:
    """The attention family that most often comes first after a cast."""
    readers: Counter[str] = Counter()
    for step in steps:
        pending = False
        for kernel in step.forward:
            if kernel.name in names and is_large_copy(kernel, copies):
                pending = True
            elif pending and is_attention(kernel.name):
                readers[family(kernel.name)] += 1
                pending = False
    return readers.most_common(1)[0][0] if readers else ""
