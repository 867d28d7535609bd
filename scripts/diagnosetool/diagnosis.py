"""The answer: is the pool cast in this trace, what does it cost, and what comes next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnosetool.cast import PoolCast, find_cast, is_large_copy
from diagnosetool.kernels import (
    COMPACT_DIRECT,
    COMPACT_GATHER,
    COPY,
    family,
    is_attention,
)
from diagnosetool.sample import Kernel
from diagnosetool.steps import Steps, find_steps
from diagnosetool.stream import EventStream
from diagnosetool.timeline import Timeline, read_timeline
from diagnosetool.verdict import Verdict, verdict_of, why_no_step

IDLE = "GPU idle"


@dataclass(frozen=True)
class Cost:
    """A family of kernels and its microseconds in a step."""

    family: str
    time: float


@dataclass(frozen=True)
class Diagnosis:
    """What a trace shows of its decode steps; times in microseconds.

    Attributes:
        reason: one sentence for the verdict.
        remedy: what to do about it; "" for nothing.
        step_time: the median time from the start of one step to the start of the next.
        costs: everything but the cast, the dearest first, in the mean step.
        notes: what limits the answer, such as a file that ends early.
    """

    path: str
    device: str
    verdict: Verdict
    reason: str
    remedy: str = ""
    steps: int = 0
    steps_from: str = ""
    layers: int = 0
    step_time: float = 0.0
    attention: str = ""
    cast: PoolCast | None = None
    costs: tuple[Cost, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def without_cast(self) -> float:
        """Microseconds of the step without the cast, before the cost of what replaces it."""
        return self.step_time - (self.cast.time if self.cast else 0.0)


def diagnose(stream: EventStream) -> Diagnosis:
    """Read the trace and judge it; TraceError where it can't be read."""
    return judge(stream, read_timeline(stream))


def judge(stream: EventStream, timeline: Timeline) -> Diagnosis:
    """Judge what was read."""
    blank = Diagnosis(
        path=stream.path,
        device=device_name(stream.header),
        verdict=Verdict.UNKNOWN,
        reason="",
        notes=tuple(_notes(stream, timeline)),
    )
    if steps := decode_steps(timeline):
        return _measured(blank, steps, timeline)
    reason, remedy = why_no_step(timeline)
    return replace(blank, reason=reason, remedy=remedy)


def _measured(blank: Diagnosis, steps: Steps, timeline: Timeline) -> Diagnosis:
    cast = find_cast(steps, timeline.copies)
    attention = _attention(steps)
    costs = _costs(steps, cast, timeline)
    copied = sum(cost.time for cost in costs if cost.family == COPY) / steps.length
    verdict, reason, remedy = verdict_of(cast, attention, copied, steps)
    return replace(
        blank,
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        steps=len(steps.steps),
        steps_from=steps.source,
        layers=steps.layers,
        step_time=steps.length,
        attention=attention,
        cast=cast,
        costs=tuple(costs),
    )


def device_name(header: dict[str, Any]) -> str:
    """The GPU's name from the trace's header; "unknown GPU" where it is not there."""
    devices = header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return str(name or "").strip() or "unknown GPU"


def decode_steps(timeline: Timeline) -> Steps | None:
    """The decode steps, None where there are none.

    Attention kernels count the layers; where none is known here, large copies do.
    """

    def attends(kernel: Kernel) -> bool:
        return is_attention(kernel.name)

    def copies(kernel: Kernel) -> bool:
        return is_large_copy(kernel, timeline.copies)

    return find_steps(timeline, attends) or find_steps(timeline, copies)


def _attention(steps: Steps) -> str:
    """The attention family that takes most time."""
    times: dict[str, float] = defaultdict(float)
    for step in steps.steps:
        for kernel in step.forward:
            if is_attention(kernel.name):
                times[family(kernel.name)] += kernel.duration
    return max(times, key=lambda label: times[label], default="")


def _costs(steps: Steps, cast: PoolCast | None, timeline: Timeline) -> list[Cost]:
    times: dict[str, float] = defaultdict(float)
    for step in steps.steps:
        times[IDLE] += max(step.length - _busy(step.kernels), 0.0)
        for kernel in step.kernels:
            if not (cast and kernel.name in cast.names and is_large_copy(kernel, timeline.copies)):
                times[family(kernel.name)] += kernel.duration
    costs = [Cost(label, time / len(steps.steps)) for label, time in times.items()]
    return sorted(costs, key=lambda cost: -cost.time)


def _busy(kernels: Sequence[Kernel]) -> float:
    """Microseconds in which at least one of `kernels` runs; they are in order of start."""
    busy, reached = 0.0, float("-inf")
    for kernel in kernels:
        busy += max(kernel.end - max(kernel.start, reached), 0.0)
        reached = max(reached, kernel.end)
    return busy


def _notes(stream: EventStream, timeline: Timeline) -> list[str]:
    notes = []
    if stream.truncated:
        notes.append("the file ends early: only what was written before is judged")
    if stream.skipped:
        notes.append(f"{stream.skipped} events are not valid JSON and were left out")
    if timeline.odd:
        notes.append(f"{timeline.odd} events have fields unlike a profiler's and were left out")
    if timeline.devices > 1:
        notes.append(f"the trace holds {timeline.devices} devices: the first one is judged")
    if left_out := timeline.kernels_left_out:
        kept, parts = len(timeline.kernels), len(timeline.windows)
        where = f"in {parts} parts spread over the trace" if parts > 1 else "the first ones"
        notes.append(f"only {kept:,} of {kept + left_out:,} kernels are judged, {where}")
    if any(family(k.name) in (COMPACT_GATHER, COMPACT_DIRECT) for k in timeline.kernels):
        notes.append("flashinfer_mla_compact is at work in this trace")
    return notes
