"""Forward passes that the server named: on the GPU's timeline, or on the host's alone."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diagnosetool.sample import Kernel

# Where the server drafts, the pass that verifies marks the step: drafts say DECODE as well.
DECODE_MODES = ("VERIFY", "TARGET_VERIFY", "DECODE")
_SGLANG = re.compile(r"step\[(\w+)")
_VLLM = re.compile(r"execute_.*?context_(\d+).*?generation_(\d+)")


class Span(NamedTuple):
    """A forward pass from its start to its end, in microseconds; `mode` is such as DECODE."""

    start: float
    end: float
    mode: str


def mode_of(name: str) -> str:
    """The mode of a pass, such as DECODE of "step[DECODE bs=4]"; "" where `name` names none.

    vLLM writes how many requests are in prefill and in decode: one in prefill makes it an EXTEND.
    """
    if found := _SGLANG.match(name):
        return found[1]
    if found := _VLLM.match(name):
        return "DECODE" if int(found[1]) == 0 else "EXTEND"
    return ""


def is_prefill(mode: str) -> bool:
    """Whether a pass of `mode` reads prompts; a draft's own extend is part of a decode step."""
    words = ("EXTEND", "MIXED", "PREFILL")
    return not mode.startswith("DRAFT") and any(word in mode for word in words)


def merged(marks: Mapping[str, Sequence[float]]) -> list[Span]:
    """Spans in order, of starts and ends by mode: one a pass, though each stream has its own."""
    spans: list[Span] = []
    for mode, ends in marks.items():
        first = len(spans)
        for start, end in sorted(zip(ends[::2], ends[1::2], strict=True)):
            if len(spans) > first and start < spans[-1].end:
                spans[-1] = spans[-1]._replace(end=max(spans[-1].end, end))
            else:
                spans.append(Span(start, end, mode))
    return sorted(spans)


def moved_to_the_gpu(
    host: Sequence[Span], launches: Sequence[float], kernels: Iterable[Kernel]
) -> list[Span]:
    """Where the passes of the host's timeline ran on the GPU, by what was launched in them.

    `launches` are times and correlations in turn. A pass without a kernel of `kernels` is left out.
    """
    runs: dict[int, list[float]] = defaultdict(list)
    for kernel in kernels:
        runs[kernel.correlation] += (kernel.start, kernel.end)
    starts = [span.start for span in host]
    moved: dict[int, list[float]] = defaultdict(list)
    for time, correlation in zip(launches[::2], launches[1::2], strict=True):
        at = bisect_right(starts, time) - 1
        if correlation > 0 and correlation in runs and at >= 0 and time <= host[at].end:
            moved[at] += runs[int(correlation)]
    return sorted(Span(min(times), max(times), host[at].mode) for at, times in moved.items())
