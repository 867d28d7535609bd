"""The answer: is the pool cast in this trace, what does it cost, and what comes next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from diagnosetool.cast import PoolCast, find_cast, is_large_copy
from diagnosetool.kernels import (
    COMPACT_DIRECT,
    COMPACT_GATHER,
    COPY,
    FLASHINFER_MLA,
    PREFILL,
    family,
    is_attention,
    is_like_attention,
    is_unknown,
    short_name,
)
from diagnosetool.marks import DECODE_MODES
from diagnosetool.sample import Kernel
from diagnosetool.steps import Steps, find_steps
from diagnosetool.stream import EventStream
from diagnosetool.timeline import Timeline, read_timeline

IDLE = "GPU idle"
COPIES_DOMINATE = 1 / 3  # of a step: then "no cast" is not the answer
ATTACH = "attach the trace to a report"
COPY_AGAIN = "copy the whole file from its server"
RECORD_AGAIN = "profile while the server decodes, for ten steps or more"
RECORD_GPU = "profile with the GPU activity on, until the server has decoded some tokens"
NAME_WIDTH = 100


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
        reason="",
        notes=tuple(_notes(stream, timeline)),
    )
    if steps := decode_steps(timeline):
        return _measured(blank, steps, timeline)
    reason, remedy = _why_no_step(timeline)
    return replace(blank, reason=reason, remedy=remedy)


def _why_no_step(timeline: Timeline) -> tuple[str, str]:
    """Why no decode step was found, and the remedy."""
    families = {family(kernel.name) for kernel in timeline.kernels}
    attends = any(is_attention(kernel.name) for kernel in timeline.kernels)
    unknown = _unknown(timeline.kernels)
    modes = ", ".join(sorted(timeline.modes))
    nameless = f"; kernels not known here: {unknown}" if unknown and not attends else ""
    marked = f"no decode step: {timeline.engine} marked"
    causes = (
        (timeline.cut and not families, "the file ends before the first GPU kernel", COPY_AGAIN),
        (not families, "the trace holds no GPU kernels", RECORD_GPU),
        (
            timeline.modes and timeline.modes.isdisjoint(DECODE_MODES),
            f"{marked} no decode, only {modes}",
            RECORD_AGAIN,
        ),
        (timeline.cut, f"no whole decode step: the file ends early{nameless}", COPY_AGAIN),
        (
            attends and timeline.modes and not timeline.spans,
            f"{marked} {modes} on the host's timeline, and no launches show what ran in them",
            RECORD_AGAIN,
        ),
        (attends, "no decode step was found: one pass alone may be a prefill", RECORD_AGAIN),
        (PREFILL in families, "no decode step: all attention is that of a prefill", RECORD_AGAIN),
        (unknown, f"no attention kernel was recognised{nameless}", ATTACH),
        (True, "no decode step of two attention layers or more was found", RECORD_AGAIN),
    )
    return next((reason, remedy) for holds, reason, remedy in causes if holds)


def _unknown(kernels: Iterable[Kernel], most: int = 3) -> str:
    """Names of kernels that are not known, those like attention first, then by their time."""
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if is_unknown(kernel.name):
            times[kernel.name] += kernel.duration
    ranked = sorted(times, key=lambda name: (not is_like_attention(name), -times[name]))
    return ", ".join(dict.fromkeys(short_name(name)[:NAME_WIDTH] for name in ranked[:most]))


def _measured(blank: Diagnosis, steps: Steps, timeline: Timeline) -> Diagnosis:
    cast = find_cast(steps, timeline.copies)
    attention = _attention(steps)
    costs = _costs(steps, cast, timeline)
    copied = sum(cost.time for cost in costs if cost.family == COPY) / steps.length
    verdict, reason, remedy = _verdict(cast, attention, steps)
    if verdict is Verdict.ABSENT and copied > COPIES_DOMINATE:
        verdict, remedy = Verdict.UNKNOWN, ATTACH
        reason = f"copies take {copied:.0%} of a step, but not one of one size in every layer"
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

    Layers are told by attention kernels; where none is known here, by large copies.
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


def _verdict(cast: PoolCast | None, attention: str, steps: Steps) -> tuple[Verdict, str, str]:
    backend = (cast.reader if cast else attention).removeprefix("attention, ")
    unknown = _unknown(kernel for step in steps.steps for kernel in step.forward)
    if not backend:
        reason = "every layer copies a tensor of pool size" if cast else "copies alone recur"
        reason += ", and what reads it is not known"
        return Verdict.UNKNOWN, f"{reason}: {unknown}" if unknown else reason, ATTACH
    if cast is None:
        return Verdict.ABSENT, f"no layer copies a KV pool; attention is {backend}", ""
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
    if left_out := timeline.kernels_left_out:
        parts = len(timeline.windows)
        judged = (
            f"only {parts} parts are judged," if parts > 1 else "only the first part is judged,"
        )
        kept = len(timeline.kernels)
        notes.append(f"{judged} {kept:,} of {kept + left_out:,} kernels")
    if any(family(k.name) in (COMPACT_GATHER, COMPACT_DIRECT) for k in timeline.kernels):
        notes.append("flashinfer_mla_compact is at work in this trace")
    return notes
