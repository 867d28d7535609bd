"""Where the decode steps of a trace begin and end, from whatever evidence the trace holds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low, multimode

from diagnosetool.kernels import PREFILL, family, runs_once
from diagnosetool.marks import DECODE_MODES, Span, is_prefill
from diagnosetool.sample import Kernel
from diagnosetool.timeline import Timeline

MOST_LAYERS = 256
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
    """The decode steps of a trace, the evidence that they were found by, and the layers of one."""

    source: str
    steps: Sequence[Step]
    layers: int

    @property
    def length(self) -> float:
        """Microseconds of the median step."""
        return median(step.length for step in self.steps)


# The start of a step, the end of its forward pass, and the start of the step that follows.
Bounds = list[tuple[float, float, float]]
# The start and the end of a forward pass, and its layers.
Passes = list[tuple[float, float, int]]
LayerMarks = Callable[[Kernel], bool]


def find_steps(timeline: Timeline, layer_marks: LayerMarks) -> Steps | None:
    """The whole decode steps, or None where neither spans, graphs nor repetition show any.

    `layer_marks` says of a kernel whether it is the one that each layer runs once.
    """
    kernels = timeline.kernels
    if timeline.modes and timeline.modes.isdisjoint(DECODE_MODES):
        return None  # the server marked its passes, and none of them decodes
    layers = [kernel.start for kernel in kernels if layer_marks(kernel)]
    finders: list[tuple[str, Callable[[], Bounds]]] = [
        (f"{timeline.engine}'s step spans", lambda: _from_spans(timeline.spans, layers)),
        ("CUDA graph replays", lambda: _from_replays(kernels, layer_marks)),
        ("the repetition of kernels", lambda: _from_repetition(timeline, layers)),
    ]
    if not timeline.spans and any(map(is_prefill, timeline.modes)):
        finders.pop()  # prefills recur as well, and nothing shows which passes they are
    found = (_whole(source, finder(), timeline, layers) for source, finder in finders)
    usable = (steps for steps in found if steps.steps and steps.layers >= 2)
    if timeline.cut:  # what was cut off may be spans alone
        return max(usable, key=lambda steps: len(steps.steps), default=None)
    return next(usable, None)


def _whole(source: str, bounds: Bounds, timeline: Timeline, layers: Sequence[float]) -> Steps:
    """The steps that the trace holds from end to end, without another pass inside."""
    whole = [one for one in bounds if timeline.holds(one[0], one[2])]
    steps = _uninterrupted(_cut(timeline.kernels, whole), layers)
    counts = [_count(layers, step.start, step.forward[-1].start) for step in steps]
    return Steps(source, steps, int(median(counts or [0])))


def _count(times: Sequence[float], start: float, end: float) -> int:
    """How many of the sorted `times` lie from `start` to `end`."""
    return bisect_right(times, end) - bisect_left(times, start)


def _from_spans(spans: Sequence[Span], layers: Sequence[float]) -> Bounds:
    """Passes of the first mode that decodes, with as many layers as most of them have."""
    for mode in DECODE_MODES:
        passes = [
            (span.start, span.end, _count(layers, span.start, span.end))
            for span in spans
            if span.mode == mode
        ]
        if passes:
            known = [count for *_, count in passes if count]
            others = [span.start for span in spans if is_prefill(span.mode)]
            return _followed(passes, max(multimode(known), default=0), others)
    return []


def _from_replays(kernels: Iterable[Kernel], layer_marks: LayerMarks) -> Bounds:
    """Replays of the graph that holds most layers: its kernels share their launch's correlation."""
    groups: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.correlation].append(kernel)
    replays = [
        (group[0].start, max(kernel.end for kernel in group), sum(map(layer_marks, group)))
        for correlation, group in groups.items()
        if correlation > 0 and len(group) > 1
    ]
    return _followed(replays, max((count for *_, count in replays), default=0))


def _followed(passes: Passes, layers: int, others: Iterable[float] = ()) -> Bounds:
    """The passes of so many layers, if two or more, each with the start of what follows it.

    That is such a pass, one of `others`, or the last of all, which may be cut. Where nothing
    follows, a pass stands if it is alone.
    """
    full = sorted((start, end) for start, end, count in passes if count == layers >= 2)
    starts = sorted([*others, max(passes, default=(0.0,))[0], *(start for start, _ in full)])
    after = [bisect_right(starts, start) for start, _ in full]
    bounds = [
        (start, end, starts[at])
        for (start, end), at in zip(full, after, strict=True)
        if at < len(starts)
    ]
    return bounds or [(start, end, end) for start, end in full]


def _from_repetition(timeline: Timeline, layers: Sequence[float]) -> Bounds:
    """Steps between two runs of a kernel that a pass runs once, such as the sampler's.

    Between two runs of it there are as many layers as the model has, each time. Other kernels
    show nothing: those of every second layer recur in one pass just as evenly.
    """
    ranks: dict[str, dict[int, float]] = defaultdict(dict)
    for kernel in filter(lambda kernel: runs_once(kernel.name), timeline.kernels):
        ranks[kernel.name].setdefault(bisect_left(layers, kernel.start), kernel.start)
    found: Bounds = []
    most = 2
    for runs in ranks.values():
        pairs = [(a, b) for a, b in pairwise(runs.items()) if timeline.holds(a[1], b[1])]
        gaps = Counter(later - earlier for (earlier, _), (later, _) in pairs)
        usual, times = max(gaps.items(), key=lambda gap: gap[1], default=(0, 0))
        if most <= usual <= MOST_LAYERS and times >= 0.8 * gaps.total():
            bounds = [(a[1], b[1], b[1]) for a, b in pairs if b[0] - a[0] == usual]
            if usual > most or len(bounds) > len(found):
                found, most = bounds, usual
    return found


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


def _uninterrupted(steps: list[Step], layers: Sequence[float]) -> list[Step]:
    """The steps of usual length without another pass inside, whose own mark was lost."""
    counts = [_count(layers, step.start, step.kernels[-1].start) for step in steps]
    most = TYPICAL * median_low(counts or [0])
    single = [step for step, count in zip(steps, counts, strict=True) if count <= most]
    longest = TYPICAL * median([step.length for step in single] or [0.0])
    return [step for step in single if step.length <= longest]
