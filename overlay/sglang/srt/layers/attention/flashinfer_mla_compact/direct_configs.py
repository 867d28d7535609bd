"""How each card runs the direct attention: tiles, warps and decoders, by compute capability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.direct_kernels import attend_splits

try:
    from sglang.srt.layers.attention.flashinfer_mla_compact.direct_wgmma import attend_splits_wgmma
    from sglang.srt.layers.attention.flashinfer_mla_compact.direct_wgmma_wide import (
        attend_splits_wide,
    )
except ImportError:  # a Triton without Gluon, or with another Gluon
    attend_splits_wgmma = attend_splits_wide = None


@dataclass(frozen=True)
class Config:
    """How one card runs one height of query tile.

    rows, tokens: query rows and KV tokens of a tile. registers: most a thread may use, None for
    no limit. blocks: programs that fit on an SM at once. shortest: fewest tokens of a split.
    wgmma: run Hopper's own kernel, whose `stages` mean nothing.
    """

    rows: int
    tokens: int
    warps: int
    stages: int
    registers: int | None
    blocks: int
    shortest: int = 128
    wgmma: bool = False


# From what compiles without spills within each card's shared memory; see tests/kernels.
# sm_86, sm_89 and sm_120 have 99 KiB: a tile of 64 rows would leave 16 tokens a tile.
# sm_80 has 163 KiB and no e4m3 conversion: 64 tokens a tile hide the longer decode.
# sm_90: Hopper's own kernel, the fastest of those timed on an H200 at every height.
# sm_100 has no wgmma; its shared memory is that of sm_90.
_SMALL = {
    16: Config(16, 32, 4, 5, None, 1, shortest=32),
    32: Config(32, 32, 4, 3, None, 1, shortest=32),
}
_LARGE = {
    16: Config(16, 32, 4, 5, None, 2, shortest=32),
    32: Config(32, 32, 4, 3, None, 2, shortest=32),
}
CONFIGS: dict[int, dict[int, Config]] = {
    80: {16: Config(16, 64, 8, 3, None, 1), 32: Config(32, 64, 8, 3, None, 1)},
    86: _SMALL,
    89: _SMALL,
    90: {
        16: Config(16, 64, 4, 1, None, 2, shortest=64, wgmma=True),
        32: Config(32, 128, 8, 1, None, 1, wgmma=True),
        64: Config(64, 64, 8, 1, None, 1, shortest=64, wgmma=True),
    },
    100: _LARGE,
    120: _SMALL,
}
# What a batch of one request takes instead: tiles of 32 rows share the work among more programs.
ALONE: dict[int, dict[int, Config]] = {90: {16: CONFIGS[90][16], 32: CONFIGS[90][32]}}


def usable_capability(capability: tuple[int, int]) -> tuple[int, int]:
    """The capability to be treated as: Hopper's kernels need a Gluon that older Tritons lack."""
    if capability == (9, 0) and attend_splits_wgmma is None:
        return (10, 0)  # whose kernel needs no wgmma, and which has as much shared memory
    return capability


def configure(capability: tuple[int, int], rows: int, *, alone: bool = False) -> Config:
    """The configuration for `rows` query rows a request (heads times tokens).

    alone: for a batch of one request. An unknown card takes the entry of the closest older one,
    which needs nothing it lacks.
    """
    major, minor = usable_capability(capability)
    number = major * 10 + minor
    card = max((known for known in CONFIGS if known <= number), default=86)
    table = ALONE.get(card, CONFIGS[card]) if alone else CONFIGS[card]
    return next((table[height] for height in sorted(table) if height >= rows), table[max(table)])


def kernel_of(config: Config) -> Any:
    """The kernel that runs `config`; all take the same arguments."""
    if not config.wgmma:
        return attend_splits
    return attend_splits_wide if config.rows == 64 else attend_splits_wgmma


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
