"""The plan that batches carry where a runner translates slots itself (sglang 0.5.22 and later).

Upstream gives a batch its plan where the scheduler makes it, which the tests' batches never pass.
Over a plain pool the plan names the slots as they are.
"""

from __future__ import annotations

from typing import Any

CARRIED = ("kv_loc_plan", "kv_loc_cols")


def find_pools(runner: Any) -> None:
    """Have plans made for the pools that a runner was given after it was made."""
    if hasattr(runner, "init_kv_index_translator"):
        runner.init_kv_index_translator()


def bind(runner: Any, batch: Any) -> None:
    """Give a batch a plan of its own, after whatever changed its mode or its lengths."""
    translator: Any = getattr(runner, "kv_index_translator", None)
    if hasattr(translator, "bind_own_plan"):
        translator.bind_own_plan(batch)


def carried(batch: Any) -> dict[str, Any]:
    """What a replay takes over from the real batch."""
    return {name: getattr(batch, name) for name in CARRIED if hasattr(batch, name)}
