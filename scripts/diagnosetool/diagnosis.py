"""The answer: is the pool cast in this trace, what does it cost, and what comes next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from diagnosetool.cast import PoolCast, find_cast, is_large_copy
from diagnosetool.kernels import (
    COMPACT_DIRECT,
    COMPACT_GATHER,
    FLASHINFER_MLA,
    family,
    is_attention,
)
from diagnosetool.steps import DECODE_MODES, Steps, find_steps, marks_a_step
from diagnosetool.stream import EventStream
from diagnosetool.timeline import KERNEL_LIMIT, Kernel, Timeline, read_timeline

IDLE = "GPU idle"
COPIES_DOMINATE = 0.4  # of a step: then no cast is not the answer


class Verdict(StrEnum):
    """What the trace shows."""

    CAST = "cast"
    OTHER_CAST = "other-cast"
    ABSENT = "absent"
    UNKNOWN = "unknown"


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
        reason="no decode step of two attention layers or more was found",
        remedy="profile while the server decodes, for ten steps or more",
        notes=tuple(_notes(stream, timeline)),
    )
    if not timeline.kernels:
        reason = "the trace holds no GPU kernels"
        remedy = "profile with the GPU activity on, until the server has decoded some tokens"
        return replace(blank, reason=reason, remedy=remedy)
    steps, layers = steps_and_layers(timeline)
    if steps:
        return _measured(blank, steps, layers, timeline)
    reason, remedy = _why_no_step(timeline) or (blank.reason, blank.remedy)
    return replace(blank, reason=reason, remedy=remedy)


def _why_no_step(timeline: Timeline) -> tuple[str, str] | None:
    """A reason that sglang's marks give, and its remedy."""
    modes = {span.mode for span in timeline.spans} | timeline.host_modes
    if modes and not modes & set(DECODE_MODES):
        reason = f"no decode step: sglang marked no decode, only {', '.join(sorted(modes))}"
        return reason, "profile while the server decodes"
    if not modes or any(is_attention(kernel.name) for kernel in timeline.kernels):
        return None
    names = ", ".join(_dearest(timeline.kernels))
    reason = (
        f"the server decodes, by attention kernels that are not known here; the dearest: {names}"
    )
    return reason, "attach the trace to a report"


def _dearest(kernels: Sequence[Kernel], count: int = 3) -> list[str]:
    """Names of the kernels that take most time."""
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        times[kernel.name] += kernel.duration
    return sorted(times, key=lambda name: -times[name])[:count]


def _measured(blank: Diagnosis, steps: Steps, layers: int, timeline: Timeline) -> Diagnosis:
    cast = find_cast(steps, layers, timeline.copies)
    attention = _attention(steps)
    verdict, reason, remedy = _verdict(cast, attention)
    if verdict is Verdict.ABSENT and (share := _copied_share(steps, timeline)) > COPIES_DOMINATE:
        verdict = Verdict.UNKNOWN
        reason = f"large copies take {share:.0%} of a step, but not one in every layer"
        remedy = "profile some more steps, or attach the trace to a report"
    return replace(
        blank,
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        steps=len(steps.steps),
        steps_from=steps.source,
        layers=layers,
        step_time=steps.length,
        attention=attention,
        cast=cast,
        costs=tuple(_costs(steps, cast, timeline)),
    )


def _copied_share(steps: Steps, timeline: Timeline) -> float:
    """The share of the steps' time that large copies take."""
    copied = sum(
        kernel.duration
        for step in steps.steps
        for kernel in step.kernels
        if is_large_copy(kernel, timeline.copies)
    )
    return copied / max(sum(step.length for step in steps.steps), 1e-9)


def device_name(header: dict[str, Any]) -> str:
    """The GPU's name from the trace's header; "unknown GPU" where it is not there."""
    devices = header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return str(name or "unknown GPU")


def steps_and_layers(timeline: Timeline) -> tuple[Steps | None, int]:
    """The decode steps, None where there are none, and the attention layers of one.

    By attention kernels; by large copies alone where the trace has no attention known here.
    """

    def attends(kernel: Kernel) -> bool:
        return is_attention(kernel.name)

    def copies(kernel: Kernel) -> bool:
        return is_large_copy(kernel, timeline.copies)

    for marks in (attends, copies):
        if steps := find_steps(timeline, marks):
            return steps, marks_a_step(steps, marks)
    return None, 0


def _attention(steps: Steps) -> str:
    """The attention family that takes most time."""
    times: dict[str, float] = defaultdict(float)
    for step in steps.steps:
        for kernel in step.forward:
            if is_attention(kernel.name):
                times[family(kernel.name)] += kernel.duration
    return max(times, key=lambda label: times[label], default="")


def _verdict(cast: PoolCast | None, attention: str) -> tuple[Verdict, str, str]:
    backend = (cast.reader if cast else attention).removeprefix("attention, ")
    if cast is None and not attention:
        reason = "no attention kernel known to this tool runs here, and no copy in every layer"
        return Verdict.UNKNOWN, reason, "attach the trace to a report"
    if cast is None:
        return Verdict.ABSENT, f"no layer copies a KV pool; attention is {backend}", ""
    if not cast.reader:
        reason = "every layer copies a tensor of pool size, and what reads it is not known"
        return Verdict.UNKNOWN, reason, "name the server's --attention-backend in a report"
    if cast.reader == FLASHINFER_MLA:
        reason = "FlashInfer MLA casts the whole KV pool in every layer of every step"
        return Verdict.CAST, reason, "serve with --attention-backend flashinfer_mla_compact"
    reason = f"{backend} casts the whole KV pool in every layer of every step"
    remedy = "another backend's cast; flashinfer_mla_compact in its place has none"
    return Verdict.OTHER_CAST, reason, remedy


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
    if timeline.kernels_left_out:
        notes.append(f"only the first {KERNEL_LIMIT:,} kernels are judged")
    if any(family(k.name) in (COMPACT_GATHER, COMPACT_DIRECT) for k in timeline.kernels):
        notes.append("flashinfer_mla_compact is at work in this trace")
    return notes
