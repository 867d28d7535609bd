"""How each card runs the direct attention: kernels, tiles, warps and decoders, by capability."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

# By the name that a Config gives: the function of that name in `kernels`, all of the same
# arguments. What can't be imported, or compiled, is taken out, and its fault is kept.
KERNELS: dict[str, Any] = {}
FAULTS: dict[str, str] = {}


def give_up(name: str, error: Exception) -> None:
    """Do without a kernel from now on."""
    KERNELS.pop(name, None)
    lines = str(error).strip().splitlines() or [""]
    FAULTS[name] = f"{type(error).__name__}: {lines[0]}"


for _name in ("plain", "mma", "wgmma"):
    try:
        _module = importlib.import_module(f".kernels.{_name}", __package__)
        KERNELS[_name] = getattr(_module, f"attend_splits_{_name}")
    except Exception as error:  # another Triton may lack any name that a kernel's module uses
        give_up(_name, error)


@dataclass(frozen=True)
class Config:
    """How one card runs one height of query tile.

    rows, tokens: query rows and KV tokens of a tile. warps: those that add values up; "wgmma" has
    four more, for the weights. stages: tiles that are copied ahead, for the plain kernel alone.
    registers: most a thread may use, None for no limit. blocks: programs that fit on an SM at
    once. shortest: fewest tokens of a split. kernel: its name in KERNELS.
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    registers: int | None
    blocks: int
    shortest: int = 128
    kernel: str = "plain"


def _mma(rows: int, blocks: int) -> Config:
    return Config(rows, 32, 4, 1, None, blocks, shortest=32, kernel="mma")


# By the most query rows that take it; more take the last.
# sm_90: the fastest of those timed on an H200. The others: what of it their shared memory holds, of
# which an SM of sm_90 and sm_100 has 228 KiB, one of sm_80 164 KiB and the others' 100 KiB.
_WGMMA = Config(64, 64, 8, 1, None, 1, shortest=64, kernel="wgmma")
_SMALL = {16: _mma(16, 1), 32: _mma(32, 1)}
_LARGE = {16: _mma(16, 2), 32: _mma(32, 2)}
CONFIGS: dict[int, dict[int, Config]] = {
    80: {16: _mma(16, 2), 32: _mma(32, 1)},
    86: _SMALL,
    89: _SMALL,
    90: {**_LARGE, 64: _WGMMA},
    100: _LARGE,
    120: _SMALL,
}
# What a batch of one request takes instead. Its splits are short: what each begins and ends with
# outweighs what a second block hides, and up to 64 rows, tiles of 32 rows give more programs than
# tiles of 64.
ALONE: dict[int, dict[int, Config]] = {90: {**_SMALL, 64: _mma(32, 1), 128: _WGMMA}}
# Where this Triton can't build the others.
PLAIN: dict[int, dict[int, Config]] = {
    blocks: {
        16: Config(16, 32, 4, 5, None, blocks, shortest=32),
        32: Config(32, 32, 4, 3, None, blocks, shortest=32),
    }
    for blocks in (1, 2)
}


def configure(capability: tuple[int, int] | None, rows: int, *, alone: bool = False) -> Config:
    """The configuration for `rows` query rows a request (heads times tokens).

    capability: None is Triton's interpreter, which runs the plain kernel alone. alone: for a batch
    of one request. An unknown card takes the entry of the closest older one, which needs nothing
    it lacks.
    """
    table = _table(capability, alone)
    return next((table[most] for most in sorted(table) if most >= rows), table[max(table)])


def _table(capability: tuple[int, int] | None, alone: bool) -> dict[int, Config]:
    if capability is None:
        return PLAIN[1]
    major, minor = capability
    card = max((known for known in CONFIGS if known <= major * 10 + minor), default=86)
    table = ALONE.get(card, CONFIGS[card]) if alone else CONFIGS[card]
    built = {height: config for height, config in table.items() if config.kernel in KERNELS}
    return built or PLAIN[2 if card in (90, 100) else 1]


def codec_of(dtype: torch.dtype, capability: tuple[int, int] | None) -> str:
    """Name of the decoder for a pool of `dtype`; `capability` None is Triton's interpreter.

    `e4m3_bits` (cards before sm_89) reads the NaN codes 0x7F and 0xFF as +-480; every other
    decoder gives what torch's cast gives for all 256 codes.
    """
    name = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}.get(dtype)
    if name is None:
        raise ValueError(
            f"the pool holds {dtype}; the direct kernel reads float8_e4m3fn or float8_e5m2: "
            "view the storage as one of them"
        )
    if capability is None:
        return f"{name}_plain"
    return "e4m3_bits" if name == "e4m3" and capability < (8, 9) else name
