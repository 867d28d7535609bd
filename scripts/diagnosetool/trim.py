"""Cuts a trace down to a few decode steps, small enough to commit or to attach to a report."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnosetool.marks import mode_of
from diagnosetool.steps import TYPICAL, Steps
from diagnosetool.stream import Event, EventStream, TraceError
from diagnosetool.timeline import (
    GPU_CATEGORIES,
    ODD_FIELD,
    Timeline,
    arguments_of,
    device_lane,
    time_of,
)

# Nothing else of the header is kept: it may hold a host's name and a file's path.
HEADER_KEYS = ("schemaVersion", "deviceProperties", "cupti_version", "cuda_runtime_version")


@dataclass(frozen=True)
class Window:
    """What to keep: `lane`'s work from `start` to `end`, its launches and its recorded copies."""

    lane: tuple[Any, Any]
    start: float
    end: float
    correlations: frozenset[int]
    externals: frozenset[int]

    def keeps(self, event: Event) -> bool:
        """Whether `event` is GPU work in the window, a step's span, a graph launch or a copy."""
        category, arguments = event.get("cat"), arguments_of(event)
        if category in GPU_CATEGORIES:
            return device_lane(event) == self.lane and self._spans(event)
        if category == "gpu_user_annotation":
            is_step = mode_of(str(event.get("name")))
            return bool(is_step) and event.get("pid") == self.lane[0] and self._spans(event)
        if event.get("name") == "cudaGraphLaunch":
            return arguments.get("correlation") in self.correlations
        return event.get("name") == "aten::copy_" and arguments.get("External id") in self.externals

    def _spans(self, event: Event) -> bool:
        return self.start <= time_of(event, "ts") <= self.end


def find_window(timeline: Timeline, steps: Steps, count: int) -> Window | None:
    """The middle one of the windows of `count` steps without interruption, or None.

    The first kernel of the step that follows is in it, as it ends the last step.
    """
    longest = TYPICAL * count * steps.length
    firsts, lasts = steps.steps, steps.steps[count - 1 :]
    spans = [
        (one.start, other.start + other.length) for one, other in zip(firsts, lasts, strict=False)
    ]
    whole = [span for span in spans if span[1] - span[0] <= longest]
    if not whole:
        return None
    start, end = whole[len(whole) // 2]
    inside = [kernel for kernel in timeline.kernels if start <= kernel.start <= end]
    return Window(
        lane=timeline.lane,
        start=start,
        end=end,
        correlations=frozenset(kernel.correlation for kernel in inside),
        externals=frozenset(kernel.external for kernel in inside),
    )


def write_trimmed(stream: EventStream, kept: Window, target: Path) -> int:
    """Write what `kept` keeps of `stream` to `target`, gzip where it ends in .gz; its bytes.

    TraceError where the target can't be written; what stood there stays as it was then.
    """
    events = [event for event in stream if _is_kept(kept, event)]
    header = {key: stream.header[key] for key in HEADER_KEYS if key in stream.header}
    body = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    opening = json.dumps({**header, "traceEvents": []}, separators=(",", ":"))[:-2]
    data = f"{opening}\n{body}\n]}}\n".encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    _write(target, data)
    return len(data)


def _is_kept(kept: Window, event: Event) -> bool:
    try:
        return kept.keeps(event)
    except ODD_FIELD:  # the diagnosis left it out, too
        return False


def _write(target: Path, data: bytes) -> None:
    whole = Path(os.path.realpath(target))
    part = whole.with_name(f"{whole.name}.{os.getpid()}")
    try:
        part.write_bytes(data)
        part.replace(whole)
    except OSError as error:
        reason = f"{target} can't be written ({error.strerror})"
        raise TraceError(f"{reason}: name a file in a folder with room.") from None
    finally:
        part.unlink(missing_ok=True)
