"""Why the answer is what it is, in one sentence with its remedy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum

from diagnosetool.cast import PoolCast
from diagnosetool.kernels import (
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
from diagnosetool.steps import Steps
from diagnosetool.timeline import Timeline

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


def why_no_step(timeline: Timeline) -> tuple[str, str]:
    """Why no decode step was found, and the remedy."""
    families = {family(kernel.name) for kernel in timeline.kernels}
    attends = any(is_attention(kernel.name) for kernel in timeline.kernels)
    unknown = unknown_names(timeline.kernels)
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


def verdict_of(
    cast: PoolCast | None, attention: str, copied: float, steps: Steps
) -> tuple[Verdict, str, str]:
    """The verdict, its reason and its remedy; other copies than `cast` take `copied` of a step."""
    backend = (cast.reader if cast else attention).removeprefix("attention, ")
    if not backend:
        names = unknown_names(kernel for step in steps.steps for kernel in step.forward)
        reason = "every layer copies a tensor of pool size" if cast else "copies alone recur"
        reason += ", and what reads it is not known" + (f": {names}" if names else "")
        return Verdict.UNKNOWN, reason, ATTACH
    if cast is None and copied > COPIES_DOMINATE:
        reason = f"copies take {copied:.0%} of a step, but not one of one size in every layer"
        return Verdict.UNKNOWN, reason, ATTACH
    if cast is None:
        return Verdict.ABSENT, f"no layer copies a KV pool; attention is {backend}", ""
    if cast.reader == FLASHINFER_MLA:
        reason = "FlashInfer MLA casts the whole KV pool in every layer of every step"
        return Verdict.CAST, reason, "serve with --attention-backend flashinfer_mla_compact"
    reason = f"{backend} casts the whole KV pool in every layer of every step"
    remedy = "another backend's cast; flashinfer_mla_compact in its place has none"
    return Verdict.OTHER_CAST, reason, remedy


def unknown_names(kernels: Iterable[Kernel], most: int = 3) -> str:
    """Names of kernels that are not known, those like attention first, then by their time."""
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if is_unknown(kernel.name):
            times[kernel.name] += kernel.duration
    ranked = sorted(times, key=lambda name: (not is_like_attention(name), -times[name]))
    return ", ".join(dict.fromkeys(short_name(name)[:NAME_WIDTH] for name in ranked[:most]))
