"""What an operator can watch in service: counters at sglang's Prometheus endpoint, and a log line.

How many rows a step reads is known to the device alone. One step in `SAMPLE_EVERY` starts a copy of
two numbers to pinned memory and goes on; they are read when the next sample is due, if the copy is
done, which after so many steps it is. Nothing waits for the device.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from .policy import BUFFER_VARIABLE
from .support import NAME

logger = logging.getLogger(__name__)

SAMPLE_EVERY = 64
SECONDS_BETWEEN_LINES = 60.0


@dataclass(frozen=True)
class Counters:
    """The process's Prometheus counters; row counters are sums over the sampled steps."""

    sampled_steps: Any
    rows: Any
    shared_rows_saved: Any
    fallbacks: Any


@cache
def counters(labels: tuple[str, ...]) -> Counters:
    """Registered once a process: target and draft backends share them."""
    # The client decides for multiprocess mode when it is imported, and sglang asks for that mode
    # in a variable that it sets at start.
    from prometheus_client import Counter

    def counter(name: str, documentation: str, *more: str) -> Any:
        return Counter(f"sglang:mla_compact_{name}", documentation, [*labels, *more])

    return Counters(
        counter("sampled_steps", "Planned steps that were sampled."),
        counter("rows", "Rows of a layer that sampled steps read.", "read"),
        counter("shared_rows_saved", "Rows that sampled steps read once for several requests."),
        counter("fallbacks", "Extends that read directly, as the buffer is too small."),
    )


class StepCounter:
    """Counts the steps of one backend, and logs when it falls back.

    Args:
        labels: of its counters, from `runner.metric_labels`; None where metrics are off.
        device: where the backend's numbers are.
    """

    def __init__(self, labels: dict[str, str] | None, device: torch.device) -> None:
        self._labels = labels
        self._untold = 0
        self._told = -math.inf
        if labels is None:
            return
        self._counters = counters(tuple(labels))
        self._steps = 0
        self._sampled: str | None = None
        self._sample = torch.zeros(2, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event()

    def step(self, read: str, total: torch.Tensor, rows: torch.Tensor) -> None:
        """A step was planned, outside of any capture.

        Args:
            read: "gather" or "direct".
            total: [1] int32 on the device, entries of all requests.
            rows: [1] int32 on the device, rows that are read for them.
        """
        if self._labels is None:
            return
        self._steps += 1
        if self._steps % SAMPLE_EVERY:
            return
        self._count_sample()
        self._sample[:1].copy_(total, non_blocking=True)
        self._sample[1:].copy_(rows, non_blocking=True)
        self._copied.record()
        self._sampled = read

    def fallback(self, capacity: int) -> None:
        """An eager extend reads directly, as it may need more rows than the buffer's `capacity`."""
        if self._labels is not None:
            self._counters.fallbacks.labels(**self._labels).inc()
        self._untold += 1
        now = time.monotonic()
        if now - self._told < SECONDS_BETWEEN_LINES:
            return
        logger.warning(
            "%s: reads an extend directly, as it may need more rows than the compact buffer's %d "
            "(%d such extends since the last line): raise %s if memory allows",
            NAME,
            capacity,
            self._untold,
            BUFFER_VARIABLE,
        )
        self._told, self._untold = now, 0

    def _count_sample(self) -> None:
        if self._sampled is None or not self._copied.query():
            return
        assert self._labels is not None
        total, rows = self._sample.tolist()
        self._counters.sampled_steps.labels(**self._labels).inc()
        self._counters.rows.labels(**self._labels, read=self._sampled).inc(rows)
        self._counters.shared_rows_saved.labels(**self._labels).inc(total - rows)
