"""Registers the name where sglang looks it up in the forward pass.

Each of these lookups has a default, so a name that is missing costs speed and says nothing. They
stand in modules of models, which no launcher should import: the factory registers, in the process
that has loaded the model.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from sglang.srt.layers.attention.flashinfer_mla_compact.support import NAME

BACKEND_CLASS = "FlashInferMLACompactAttnBackend"  # DFLASH tells backends by their class's name

_HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"
_DEEPSEEK = "sglang.srt.models.deepseek_common.utils"
_DFLASH = "sglang.srt.speculative.dflash_utils"
_SARVAM = "sglang.srt.models.sarvam_moe"


def register() -> None:
    """Register the name; a second call changes nothing.

    Raises:
        RuntimeError: one of sglang's doors is gone; nothing is registered then.
    """
    deepseek = _door(_HANDLERS, "AttentionBackendRegistry")
    # This handler passes the name "flashinfer" on, which settles one-shot and ragged prefill too.
    deepseek_handler = _door(_HANDLERS, "handle_attention_flashinfer")
    separate_rope = _door(_DEEPSEEK, "FORWARD_ABSORB_CORE_ATTENTION_BACKENDS")
    unmasked = _door(_DFLASH, "_DFLASH_VERIFY_SKIP_CUSTOM_MASK_BACKENDS")
    sarvam = _door(_SARVAM, "AttentionBackendRegistry")
    sarvam_handler = _door(_SARVAM, "_handle_separate_rope_backend")

    deepseek.register(NAME, deepseek_handler)
    if NAME not in separate_rope:
        separate_rope.append(NAME)
    dflash: Any = _module(_DFLASH)
    dflash._DFLASH_VERIFY_SKIP_CUSTOM_MASK_BACKENDS = unmasked | {BACKEND_CLASS}
    sarvam.register(NAME, sarvam_handler)


def _door(module: str, symbol: str) -> Any:
    try:
        return getattr(_module(module), symbol)
    except AttributeError:
        raise RuntimeError(_gone(f"{module}.{symbol}")) from None


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise RuntimeError(_gone(name)) from None


def _gone(symbol: str) -> str:
    return (
        f"{NAME}: this sglang has no {symbol}, where the name must be registered: "
        "use a release that the overlay is pinned to."
    )
