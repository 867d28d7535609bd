"""Where the decode steps of a trace begin and end, from whatever evidence the trace holds."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

from diagnosetool.kernels import PREFILL, family
from diagnosetool.timeline import Kernel, Timeline

DECODE_MODES = ("TARGET_VERIFY", "DECODE")
MOST_LAYERS = 256
# What repeats every few layers is a pattern within one pass.
LEAST_REPEATED = 6
# A step this much longer than the median one has something else inside, such as a prefill.
TYPICAL = 1.5


@dataclass(frozen=True)
class Step:
    """One decode step.

    Attributes:
        start: microseconds on the trace's clock.
        kernels: the GPU's work from this step's start to the next one's, in order.
        forward: those of `kernels` that belong to the forward pass itself.
        length: microseconds from this step's start to the next one's.
    """

    start: float
    kernels: Sequence[Kernel]
    forward: Sequence[Kernel]
    length: float


@dataclass(frozen=True)
class Steps:
    """The decode steps of a trace and the evidence that they were found by."""

    source: str
    steps: Sequence[Step]

    @property
    def length(self) -> float:
        """Microseconds of the median step."""
        return median(step.length for step in self.steps)


# The start of a step, the end of its forward pass, and the start of the step that follows.
Bounds = list[tuple[float, float, float]]
LayerMarks = Callable[[Kernel], bool]


def find_steps(timeline: Timeline, layer_marks: LayerMarks) -> Steps | None:
    """The decode steps, or None where neither spans, graphs nor repetition show any.

    `layer_marks` says of a kernel whether it is the one that each layer runs once.
    """
    kernels = timeline.kernels
    modes = {span.mode for span in timeline.spans} or timeline.host_modes
    if modes and not modes & set(DECODE_MODES):
        return None  # sglang marked its passes, and none of them decodes
    finders: tuple[tuple[str, Callable[[], Bounds]], ...] = (
        ("sglang's step spans", lambda: _from_spans(timeline)),
        ("CUDA graph replays", lambda: _from_replays(kernels, layer_marks)),
        ("the repetition of kernels", lambda: _from_repetition(kernels, layer_marks)),
    )
    for source, finder in finders:
        whole = [bounds for bounds in finder() if bounds[2] <= timeline.whole_until]
        steps = Steps(source, _typical(_single(_cut(kernels, whole), layer_marks)))
        if steps.steps and marks_a_step(steps, layer_marks) >= 2:
            return steps
    return None


def marks_a_step(steps: Steps, layer_marks: LayerMarks) -> int:
    """How many kernels of the median step's forward pass are marks of a layer."""
    counts = (sum(layer_marks(kernel) for kernel in step.forward) for step in steps.steps)
    return int(median(counts))


def _from_spans(timeline: Timeline) -> Bounds:
    for mode in DECODE_MODES:
        if spans := [(span.start, span.end) for span in timeline.spans if span.mode == mode]:
            return _followed(spans)
    return []


def _from_replays(kernels: Iterable[Kernel], layer_marks: LayerMarks) -> Bounds:
    """Replays of the graph that holds most layers: its kernels share their launch's correlation."""
    groups: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.correlation].append(kernel)
    groups.pop(-1, None)
    layers = {
        correlation: sum(layer_marks(kernel) for kernel in group)
        for correlation, group in groups.items()
        if len(group) > 1
    }
    most = max(layers.values(), default=0)
    if most < 2:
        return []
    replays = [groups[correlation] for correlation, count in layers.items() if count == most]
    return _followed(sorted((group[0].start, max(k.end for k in group)) for group in replays))


def _followed(passes: list[tuple[float, float]]) -> Bounds:
    """Each forward pass with the start of the next one; the last has none, and stands if alone."""
    if len(passes) == 1:
        return [(start, end, end) for start, end in passes]
    return [(*this, following[0]) for this, following in pairwise(passes)]


def _from_repetition(kernels: Sequence[Kernel], layer_marks: LayerMarks) -> Bounds:
    """Steps between two runs of a kernel that occurs once a step, such as the sampler's.

    Between two runs of such a kernel there are as many layers as the model has, each time; most
    kernels occur in every layer, and those of a prefill have other names.
    """
    ranks = _layer_ranks(kernels, layer_marks)
    votes: dict[int, list[str]] = defaultdict(list)
    for name, runs in ranks.items():
        gaps = Counter(later[0] - earlier[0] for earlier, later in pairwise(runs))
        if gaps:
            layers, times = gaps.most_common(1)[0]
            if 2 <= layers <= MOST_LAYERS and times >= 0.8 * gaps.total():
                votes[layers].append(name)
    layers = max(votes, default=0)
    if layers < LEAST_REPEATED:
        return []
    marker = max(votes[layers], key=lambda name: len(ranks[name]))
    return [
        (start, end, end)
        for (rank, start), (next_rank, end) in pairwise(ranks[marker])
        if next_rank - rank == layers
    ]


def _layer_ranks(
    kernels: Iterable[Kernel], layer_marks: LayerMarks
) -> dict[str, list[tuple[int, float]]]:
    """For each name, the runs of it: how many layers came before, and when it started."""
    ranks: dict[str, list[tuple[int, float]]] = defaultdict(list)
    layers = 0
    for kernel in kernels:
        runs = ranks[kernel.name]
        if not runs or runs[-1][0] != layers:
            runs.append((layers, kernel.start))
        layers += layer_marks(kernel)
    return ranks


def _cut(kernels: Sequence[Kernel], bounds: Bounds) -> list[Step]:
    """Each step with its kernels; those with a prefill inside are left out."""
    starts = [kernel.start for kernel in kernels]
    steps = []
    for start, end, following in bounds:
        first, last = bisect_left(starts, start), bisect_left(starts, following)
        inside = kernels[first:last]
        if not any(family(kernel.name) == PREFILL for kernel in inside):
            forward = kernels[first : bisect_left(starts, end)]
            steps.append(Step(start, inside, forward, following - start))
    return steps


def _single(steps: list[Step], layer_marks: LayerMarks) -> list[Step]:
    """The steps without another one inside, whose own mark was lost with an end of the file."""
    marks = [sum(layer_marks(kernel) for kernel in step.kernels) for step in steps]
    usual = median_low(marks) if marks else 0
    return [step for step, count in zip(steps, marks, strict=True) if count <= TYPICAL * usual]


def _typical(steps: list[Step]) -> list[Step]:
    """The steps without interruption."""
    usual = median(step.length for step in steps) if steps else 0.0
    return [step for step in steps if step.length <= TYPICAL * usual]
