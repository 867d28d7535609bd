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
DEFAULT_BUFFER_MIB = 1024

# Up to how many query heads of a rank direct reading beat gather-then-attend at every measured
# load (None: any number), and what that rests on. A card takes the newest entry that is not newer
# than itself; one that has none gathers, which is what was compared bit for bit.
_WITHOUT_WGMMA = (
    "faster than gather at every load of bench/results/kernels.json, as built for cards without "
    "wgmma and run on an H200"
)
DIRECT_HEADS: dict[tuple[int, int], tuple[int | None, str]] = {
    (8, 9): (None, _WITHOUT_WGMMA),
    (9, 0): (None, "faster than gather at every load of bench/results/kernels.json, on an H200"),
    (10, 0): (None, _WITHOUT_WGMMA),
}
# The same for the kernel in plain Triton, which takes the place of the others where the installed
# Triton is older than GLUON_TRITON.
PLAIN_HEADS = (32, "faster than gather where it was timed, in plain Triton on an H200")
GLUON_TRITON = (3, 6)


@dataclass(frozen=True)
class Settings:
    """The operator's choices, read from the environment.

    Attributes:
        strategy: "auto" picks; "gather" casts the active rows into the compact buffer and runs
            FlashInfer on it; "direct" reads FP8 rows in a kernel of its own; "stock" puts the name
            back on sglang's own FlashInfer MLA backend.
        buffer_mib: the most memory, in MiB, that the compact buffer may take.
    """

    strategy: str = "auto"
    buffer_mib: int = DEFAULT_BUFFER_MIB


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the two variables; ValueError with one sentence when a value is not one of theirs."""
    strategy = environment.get(STRATEGY_VARIABLE, "auto")
    if strategy not in STRATEGIES:
        raise ValueError(
            f"{STRATEGY_VARIABLE}={strategy!r} is not a strategy: "
            f"use one of {', '.join(STRATEGIES)}."
        )
    mib = environment.get(BUFFER_VARIABLE, str(DEFAULT_BUFFER_MIB))
    if not mib.isdecimal() or int(mib) == 0:
        raise ValueError(
            f"{BUFFER_VARIABLE}={mib!r} is not a size: give a whole number of MiB, at least 1."
        )
    return Settings(strategy, int(mib))


def capacity_rows(pool_rows: int, settings: Settings) -> int:
    """Rows of the compact buffer: as many as the budget holds, never more than the pool has.

    No step can need more than the pool's own rows, since rows that requests share are stored once.
    """
    return min(pool_rows, settings.buffer_mib * 2**20 // COMPACT_ROW_BYTES)


def decode_strategy(
    pool_rows: int,
    settings: Settings,
    capability: tuple[int, int] | None,
    heads: int | None,
    *,
    plain: bool = False,
) -> tuple[str, str]:
    """How decode reads its keys, "gather" or "direct", and why.

    Args:
        pool_rows: rows of a layer of the pool.
        settings: the operator's choices.
        capability: the device's compute capability, None where it is not known.
        heads: query heads of a rank, None where they are not known.
        plain: direct reading has only its kernel in plain Triton.
    """
    capacity = capacity_rows(pool_rows, settings)
    if capacity < pool_rows:
        # A captured decode can't be called off when its rows do not fit.
        return "direct", f"the compact buffer holds {capacity} of the pool's {pool_rows} rows"
    if settings.strategy != "auto":
        return settings.strategy, f"{STRATEGY_VARIABLE}={settings.strategy}"
    return _measured_strategy(capability, heads, plain)


def _measured_strategy(
    capability: tuple[int, int] | None, heads: int | None, plain: bool
) -> tuple[str, str]:
    if capability is None:
        return "gather", "as on a card that is not measured; none is seen here"
    known = [card for card in DIRECT_HEADS if card <= capability]
    if not known:
        return "gather", "direct reading is not measured on this card; gather equals stock's bits"
    most, measured = PLAIN_HEADS if plain else DIRECT_HEADS[max(known)]
    if most is None:
        return "direct", measured
    if heads is None:
        return "gather", f"how many heads a rank has is not known; up to {most} are read directly"
    if heads > most:
        return "gather", f"{heads} heads a rank are more than the {most} that are read directly"
    return "direct", f"{heads} heads a rank: {measured}"
