"""Registers the name where sglang looks it up in the forward pass.

Each of these lookups has a default, so a name that is missing costs speed and says nothing. They
stand in modules of models, which no launcher should import: the factory registers, in the process
that has loaded the model.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .support import NAME

BACKEND_CLASS = "FlashInferMLACompactAttnBackend"  # DFLASH tells backends by their class's name

_HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"
_DFLASH = "sglang.srt.speculative.dflash_utils"
_SARVAM = "sglang.srt.models.sarvam_moe"
# Absorbed MLA has a module of its own, or is a part of the model. The list of backends that take
# rope apart also stands elsewhere, where older releases do not read it.
_ABSORBED = "sglang.srt.models.deepseek_common.attention_forward_methods.forward_mla"
_ABSORBED_IN_MODEL = "sglang.srt.models.deepseek_v2"

Step = Callable[[], None]


def register() -> None:
    """Register the name; a second call changes nothing.

    Raises:
        RuntimeError: a place to register is gone from sglang; nothing is registered then.
    """
    # What a release need not have. Where it is there, so are its places to register.
    features = {_DFLASH: _dflash, _SARVAM: _sarvam}
    steps = [_deepseek(), *(find() for name, find in features.items() if _is_there(name))]
    for step in steps:
        step()


def _deepseek() -> Step:
    deepseek = _find(_HANDLERS, "AttentionBackendRegistry")
    # This handler passes the name "flashinfer" on, which settles one-shot and ragged prefill too.
    deepseek_handler = _find(_HANDLERS, "handle_attention_flashinfer")
    reader = _ABSORBED if _is_there(_ABSORBED) else _ABSORBED_IN_MODEL
    separate_rope = _find(reader, "FORWARD_ABSORB_CORE_ATTENTION_BACKENDS")

    def step() -> None:
        deepseek.register(NAME, deepseek_handler)
        if NAME not in separate_rope:
            separate_rope.append(NAME)

    return step


def _dflash() -> Step:
    dflash: Any = _module(_DFLASH)
    unmasked = _find(_DFLASH, "_DFLASH_VERIFY_SKIP_CUSTOM_MASK_BACKENDS")

    def step() -> None:
        dflash._DFLASH_VERIFY_SKIP_CUSTOM_MASK_BACKENDS = unmasked | {BACKEND_CLASS}

    return step


def _sarvam() -> Step:
    sarvam = _find(_SARVAM, "AttentionBackendRegistry")
    sarvam_handler = _find(_SARVAM, "_handle_separate_rope_backend")

    def step() -> None:
        sarvam.register(NAME, sarvam_handler)

    return step


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _find(module: str, symbol: str) -> Any:
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
