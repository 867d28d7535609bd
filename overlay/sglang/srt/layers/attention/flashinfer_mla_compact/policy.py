"""How a step reads its keys: what the operator chose, or what was measured to be faster.

Importable without torch and without sglang, as `support`, for tools that run before a start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .support import HEAD_DIM

COMPACT_ITEM_BYTES = 2  # the model's dtype: bfloat16 or float16
COMPACT_ROW_BYTES = HEAD_DIM * COMPACT_ITEM_BYTES

STRATEGY_VARIABLE = "SGLANG_MLA_COMPACT_STRATEGY"
BUFFER_VARIABLE = "SGLANG_MLA_COMPACT_BUFFER_MIB"
STRATEGIES = ("auto", "gather", "direct", "stock")
# The most that the buffer takes by default: where decode or verify gathers, and where eager
# extends alone do, of which one that reads more rows than fit reads directly.
DEFAULT_BUFFER_MIB = 1024
EXTEND_BUFFER_MIB = 256

# Up to how many query rows of a request (heads of a rank times query tokens) direct reading beat
# gather-then-attend at every measured load, and what that rests on. A card takes the newest entry
# that is not newer than itself; one that has none gathers, which is what was compared bit for bit.
_WITHOUT_WGMMA = (
    "faster than gather at every load of bench/results/kernels.json, as built for cards without "
    "wgmma and run on an H200"
)
DIRECT_ROWS: dict[tuple[int, int], tuple[int, str]] = {
    (8, 9): (512, _WITHOUT_WGMMA),
    (9, 0): (256, "faster than gather at every load of bench/results/kernels.json, on an H200"),
    (10, 0): (512, _WITHOUT_WGMMA),
}
MOST_HEADS = 128  # of a known MLA model
# The same for the kernel in plain Triton, which takes the place of the others where the installed
# Triton can't build them; one older than GLUON_TRITON can't.
PLAIN_ROWS = (32, "faster than gather where it was timed, in plain Triton on an H200")
GLUON_TRITON = (3, 6)


@dataclass(frozen=True)
class Settings:
    """The operator's choices, read from the environment.

    Attributes:
        strategy: "auto" picks; "gather" casts the active rows into the compact buffer and runs
            FlashInfer on it; "direct" reads FP8 rows in a kernel of its own; "stock" puts the name
            back on sglang's own FlashInfer MLA backend.
        buffer_mib: the most memory, in MiB, that the compact buffer may take; None for as much
            as its use is worth.
    """

    strategy: str = "auto"
    buffer_mib: int | None = None


@dataclass(frozen=True)
class Means:
    """What a step can be read with.

    Attributes:
        pool_rows: rows of a layer of the pool.
        capability: the device's compute capability, None where it is not known.
        gluon: the kernels in Gluon can be built.
        plain: the kernel in plain Triton can be built.
    """

    pool_rows: int
    capability: tuple[int, int] | None
    gluon: bool = True
    plain: bool = True


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the two variables; ValueError with one sentence when a value is not one of theirs."""
    strategy = environment.get(STRATEGY_VARIABLE, "auto")
    if strategy not in STRATEGIES:
        raise ValueError(
            f"{STRATEGY_VARIABLE}={strategy!r} is not a strategy: "
            f"use one of {', '.join(STRATEGIES)}."
        )
    mib = environment.get(BUFFER_VARIABLE)
    if mib is None:
        return Settings(strategy)
    if not mib.isdecimal() or int(mib) == 0:
        raise ValueError(
            f"{BUFFER_VARIABLE}={mib!r} is not a size: give a whole number of MiB, at least 1."
        )
    return Settings(strategy, int(mib))


def strategy_of(means: Means, settings: Settings, rows: int | None) -> tuple[str, str]:
    """How steps of `rows` query rows a request read their keys, "gather" or "direct", and why.

    Args:
        means: what there is to read with.
        settings: the operator's choices.
        rows: heads of a rank times query tokens of a request, None where they are not known.

    Raises:
        ValueError: neither way can be taken; the message names the buffer that would do.
    """
    most = _buffer_rows(settings.buffer_mib or DEFAULT_BUFFER_MIB)
    if most < means.pool_rows:
        if not (means.gluon or means.plain):
            mib = -(-means.pool_rows * COMPACT_ROW_BYTES // 2**20)
            raise ValueError(
                "no kernel that reads FP8 rows directly can be built here, and the compact buffer "
                f"holds {most} of the pool's {means.pool_rows} rows: set {BUFFER_VARIABLE}={mib}."
            )
        # A captured step can't be called off when its rows do not fit.
        return "direct", f"the compact buffer holds {most} of the pool's {means.pool_rows} rows"
    if not (means.gluon or means.plain):
        return "gather", "no kernel that reads FP8 rows directly can be built here"
    if settings.strategy != "auto":
        return settings.strategy, f"{STRATEGY_VARIABLE}={settings.strategy}"
    return _measured(means, rows)


def reads_few_directly(means: Means, settings: Settings, rows: int) -> bool:
    """Whether an eager extend of so many query rows a request is read directly though it fits."""
    if settings.strategy == "gather" or not (means.gluon or means.plain):
        return False
    return _measured(means, rows)[0] == "direct"


def _measured(means: Means, rows: int | None) -> tuple[str, str]:
    if means.capability is None:
        return "gather", "as on a card that is not measured; none is seen here"
    known = [card for card in DIRECT_ROWS if card <= means.capability]
    if not known:
        return "gather", "direct reading is not measured on this card; gather equals stock's bits"
    most, measured = DIRECT_ROWS[max(known)] if means.gluon else PLAIN_ROWS
    if (rows or MOST_HEADS) <= most:
        return "direct", f"up to {most} query rows a request, {measured}"
    if rows is None:
        return "gather", f"how many heads a rank has is not known; up to {most} are read directly"
    return "gather", f"{rows} query rows a request are more than {most}, which are read directly"


def capacity_rows(pool_rows: int, settings: Settings, *, gathers: bool) -> int:
    """Rows of the compact buffer: as many as the budget holds, never more than the pool has.

    No step can need more than the pool's own rows, since rows that requests share are stored once.

    gathers: decode or verify reads through the buffer; else eager extends alone do.
    """
    default = DEFAULT_BUFFER_MIB if gathers else EXTEND_BUFFER_MIB
    return min(pool_rows, _buffer_rows(settings.buffer_mib or default))


def _buffer_rows(mib: int) -> int:
    return mib * 2**20 // COMPACT_ROW_BYTES
