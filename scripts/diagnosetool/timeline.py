"""The part of a trace that the diagnosis needs: one device's kernels, its steps' spans, copies."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diagnosetool.marks import Span, merged, mode_of, moved_to_the_gpu
from diagnosetool.sample import Kernel, Sample
from diagnosetool.stream import Event, EventStream

KERNEL_LIMIT = 200_000
# Parts of a longer trace that are kept: some 17 decode steps of a 78-layer model each.
BLOCK = KERNEL_LIMIT // 8
LAUNCH_LIMIT = 2_000_000  # numbers, two a launch
GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
GPU_MARK, HOST_MARK = "gpu_user_annotation", "user_annotation"
RUNTIMES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})
# What a field of another type or size raises where a profiler's is read.
ODD_FIELD = (KeyError, TypeError, ValueError, OverflowError)
# Starts and ends of passes by the process whose timeline names them ("" for the host's) and mode.
Marks = defaultdict[Any, defaultdict[str, "array[float]"]]


class Copied(NamedTuple):
    """What a recorded `aten::copy_` moved: the shape, and dtypes as torch prints them."""

    shape: tuple[int, ...]
    source: str
    target: str


@dataclass
class Timeline:
    """One device's part of a trace, kernels in order of start.

    Attributes:
        spans: the passes that the server named, where they ran on the GPU.
        modes: the modes of all passes that it named.
        engine: who named them, "sglang" or "vLLM".
        copies: recorded copies by the id that their kernels carry.
        lane: process id and device number of the device that is kept, the first with a kernel.
        devices: how many devices run kernels in the trace.
        windows: from when to when all kernels were kept, in microseconds.
        cut: the file ends early.
        kernels_left_out: kernels of that device that were not kept, as there are too many.
        odd: events with a field that no profiler writes, left out.
    """

    kernels: list[Kernel] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    modes: frozenset[str] = frozenset()
    engine: str = "sglang"
    copies: dict[int, Copied] = field(default_factory=dict)
    lane: tuple[Any, Any] = (None, None)
    devices: int = 0
    windows: list[tuple[float, float]] = field(default_factory=list)
    cut: bool = False
    kernels_left_out: int = 0
    odd: int = 0

    def holds(self, start: float, end: float) -> bool:
        """Whether every kernel from `start` to `end` was kept."""
        return any(first <= start and end <= last for first, last in self.windows)


def read_timeline(stream: EventStream) -> Timeline:
    """Read all of `stream`; TraceError as its iteration raises."""
    timeline, sample, launches = Timeline(), Sample(KERNEL_LIMIT, BLOCK), array("d")
    names: dict[str, str] = {}
    lanes: dict[tuple[Any, Any], int] = {}
    marks: Marks = defaultdict(lambda: defaultdict(lambda: array("d")))
    for event in stream:
        try:
            category = event.get("cat")
            if category in GPU_CATEGORIES:
                if _numbered(lanes, event) == 0:
                    _add_kernel(sample, event, names)
            elif category in (GPU_MARK, HOST_MARK):
                _add_mark(timeline, marks, event)
            elif category in RUNTIMES and "Launch" in str(event.get("name")):
                _add_launch(launches, event)
            elif category == "cpu_op" and event.get("name") == "aten::copy_":
                _add_copy(timeline.copies, event)
        except ODD_FIELD:
            timeline.odd += 1
    timeline.lane = next(iter(lanes), timeline.lane)
    timeline.devices = len(lanes)
    timeline.cut = stream.truncated
    timeline.kernels, timeline.kernels_left_out = sample.kernels(), sample.left_out
    timeline.windows = sample.windows(stream.truncated)
    _place_spans(timeline, marks, launches)
    return timeline


def _numbered(lanes: dict[tuple[Any, Any], int], event: Event) -> int | None:
    """The number of the event's device, in order of first kernels; None before it runs one.

    A process may set memory on a device that another one computes on.
    """
    lane = device_lane(event)
    return lanes.setdefault(lane, len(lanes)) if event["cat"] == "kernel" else lanes.get(lane)


def _place_spans(timeline: Timeline, marks: Marks, launches: array[float]) -> None:
    """Fill in the spans: the GPU's own, else the host's where the launches show what they ran."""
    of_gpu, of_host = merged(marks[timeline.lane[0]]), merged(marks[""])
    timeline.modes = frozenset(span.mode for span in of_gpu or of_host)
    timeline.spans = of_gpu
    if not of_gpu and timeline.devices == 1:  # devices of one file may share correlations
        timeline.spans = moved_to_the_gpu(of_host, launches, timeline.kernels)


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


def _add_kernel(sample: Sample, event: Event, names: dict[str, str]) -> None:
    block = sample.block_of_next()
    if block is None:
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
    sample.blocks[block].append(kernel)


def _add_mark(timeline: Timeline, marks: Marks, event: Event) -> None:
    name = str(event.get("name"))
    if mode := mode_of(name):
        start = time_of(event, "ts")
        process = event.get("pid") if event["cat"] == GPU_MARK else ""
        marks[process][mode].extend((start, start + _duration(event)))
        timeline.engine = "sglang" if name.startswith("step[") else "vLLM"


def _add_launch(launches: array[float], event: Event) -> None:
    if len(launches) < LAUNCH_LIMIT:
        launches.extend((time_of(event, "ts"), int(arguments_of(event).get("correlation", 0))))


def _add_copy(copies: dict[int, Copied], event: Event) -> None:
    arguments = arguments_of(event)
    shapes, dtypes = arguments.get("Input Dims"), arguments.get("Input type")
    if not shapes or not dtypes or len(copies) == KERNEL_LIMIT:
        return
    target, source = (str(dtype).removeprefix("c10::") for dtype in dtypes[:2])
    copies[int(arguments.get("External id", -1))] = Copied(
        tuple(map(int, shapes[0])), source, target
    )
