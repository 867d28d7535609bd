"""The part of a trace that the diagnosis needs: one device's kernels, its steps' spans, copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diagnosetool.stream import Event, EventStream

# Some 300 decode steps of a 78-layer model; the rest of a longer trace would tell nothing new.
KERNEL_LIMIT = 400_000
GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
STEP_SPAN = "step["
# What a field of another type or size raises where a profiler's is read.
ODD_FIELD = (KeyError, TypeError, ValueError, OverflowError)


class Kernel(NamedTuple):
    """One activity of the GPU; times in microseconds, `threads` 0 where no grid was recorded."""

    start: float
    duration: float
    name: str
    threads: int
    correlation: int
    external: int
    stream: int

    @property
    def end(self) -> float:
        return self.start + self.duration


class Span(NamedTuple):
    """A forward pass that sglang named on the GPU's timeline, such as step[DECODE bs=4]."""

    start: float
    end: float
    mode: str


class Copied(NamedTuple):
    """What a recorded `aten::copy_` moved: the shape, and dtypes as torch prints them."""

    shape: tuple[int, ...]
    source: str
    target: str


@dataclass
class Timeline:
    """One device's part of a trace, kernels in order of start.

    Attributes:
        copies: recorded copies by the id that their kernels carry.
        lane: process id and device number of the device that is kept, the first in the file.
        devices: how many devices the trace holds.
        kernels_left_out: kernels of that device beyond KERNEL_LIMIT.
        whole_until: where what was left out begins, in microseconds; a step is whole before it.
        host_modes: modes of the passes that sglang named on the host's timeline.
        odd: events with a field that no profiler writes, left out.
    """

    kernels: list[Kernel] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    copies: dict[int, Copied] = field(default_factory=dict)
    lane: tuple[Any, Any] = (None, None)
    devices: int = 0
    kernels_left_out: int = 0
    whole_until: float = math.inf
    host_modes: set[str] = field(default_factory=set)
    odd: int = 0


def read_timeline(stream: EventStream) -> Timeline:
    """Read all of `stream`; TraceError as its iteration raises."""
    timeline = Timeline()
    names: dict[str, str] = {}
    lanes: dict[tuple[Any, Any], int] = {}
    spans: dict[Any, list[Span]] = {}
    for event in stream:
        try:
            category = event.get("cat")
            if category in GPU_CATEGORIES:
                lane = device_lane(event)
                if lanes.setdefault(lane, len(lanes)) == 0:
                    _add_kernel(timeline, event, names)
            elif category == "gpu_user_annotation":
                _add_span(spans.setdefault(event.get("pid"), []), event)
            elif category == "user_annotation":
                _add_mode(timeline.host_modes, str(event.get("name")))
            elif category == "cpu_op" and event.get("name") == "aten::copy_":
                _add_copy(timeline.copies, event)
        except ODD_FIELD:
            timeline.odd += 1
    timeline.lane = next(iter(lanes), timeline.lane)
    timeline.devices = len(lanes)
    timeline.kernels.sort()
    timeline.spans = _merged(spans.get(timeline.lane[0], []))
    if stream.truncated and timeline.kernels:
        timeline.whole_until = min(timeline.whole_until, timeline.kernels[-1].start)
    return timeline


def device_lane(event: Event) -> tuple[Any, Any]:
    """What distinguishes one device's GPU events: sglang merges ranks into one file."""
    return event.get("pid"), arguments_of(event).get("device")


def time_of(event: Event, key: str) -> float:
    """A time in microseconds; one of ODD_FIELD where it is no finite number."""
    time = float(event[key])
    if not math.isfinite(time):
        raise ValueError(f"{key} is {time}")
    return time


def _duration(event: Event) -> float:
    return max(time_of(event, "dur"), 0.0) if "dur" in event else 0.0


def _product(sizes: Any) -> int:
    return math.prod(map(int, sizes))


def arguments_of(event: Event) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _add_kernel(timeline: Timeline, event: Event, names: dict[str, str]) -> None:
    if len(timeline.kernels) == KERNEL_LIMIT:
        timeline.kernels_left_out += 1
        timeline.whole_until = min(timeline.whole_until, time_of(event, "ts"))
        return
    arguments = arguments_of(event)
    name = str(event.get("name"))
    kernel = Kernel(
        start=time_of(event, "ts"),
        duration=_duration(event),
        name=names.setdefault(name, name),
        threads=_product(arguments.get("grid", ())) * _product(arguments.get("block", (0,))),
        correlation=int(arguments.get("correlation", -1)),
        external=int(arguments.get("External id", -1)),
        stream=int(arguments.get("stream", -1)),
    )
    timeline.kernels.append(kernel)


def _add_span(spans: list[Span], event: Event) -> None:
    if mode := _mode(str(event.get("name"))):
        start = time_of(event, "ts")
        spans.append(Span(start, start + _duration(event), mode))


def _add_mode(modes: set[str], name: str) -> None:
    if mode := _mode(name):
        modes.add(mode)


def _mode(name: str) -> str:
    """The mode of a pass that sglang named, such as DECODE of "step[DECODE bs=4]"; else ""."""
    if not name.startswith(STEP_SPAN):
        return ""
    return name.removeprefix(STEP_SPAN).rstrip("]").split(" ")[0]


def _merged(spans: list[Span]) -> list[Span]:
    """One span a step: the profiler writes one for each stream that the step used."""
    merged: list[Span] = []
    for span in sorted(spans):
        last = merged[-1] if merged else None
        if last and last.mode == span.mode and span.start < last.end:
            merged[-1] = last._replace(end=max(last.end, span.end))
        else:
            merged.append(span)
    return merged


def _add_copy(copies: dict[int, Copied], event: Event) -> None:
    arguments = arguments_of(event)
    shapes, dtypes = arguments.get("Input Dims"), arguments.get("Input type")
    if not shapes or not dtypes or len(copies) == KERNEL_LIMIT:
        return
    target, source = (str(dtype).removeprefix("c10::") for dtype in dtypes[:2])
    copies[int(arguments.get("External id", -1))] = Copied(
        tuple(map(int, shapes[0])), source, target
    )
