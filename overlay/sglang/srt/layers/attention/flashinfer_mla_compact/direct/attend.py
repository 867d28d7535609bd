"""Split-KV MLA attention that reads FP8 rows straight from the pool.

`plan` cuts the step's KV ranges into items on the device; `attend` then runs once a layer with a
grid that depends on shapes alone, so a captured graph may be replayed with other lengths and
slots. Neither call allocates. There is no buffer to overflow: any number of slots is legal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from .configs import KERNELS, Config, codec_of, configure
from .splits import merge_splits, plan_splits
from .work import ITEM_FIELDS, NOPE, ROPE, TOKEN_FIELDS, WIDTH

LOG2_E = math.log2(math.e)
MERGE_TILE = 8192  # float32 elements that a merge program holds, 64 a thread
PLAN_BLOCK = 128


@dataclass(frozen=True)
class Workspace:
    """What `plan` writes and `attend` reads; shared by all layers and batch sizes.

    items int32 [items, 8], item_count int32 [1], token_splits int32 [tokens, 4],
    partial float32 [parts, group * heads, 512], partial_lse float32 [parts, group * heads].
    """

    heads: int
    group: int
    ragged: bool
    config: Config
    alone: Config
    processors: int
    capability: tuple[int, int] | None
    items: torch.Tensor
    item_count: torch.Tensor
    token_splits: torch.Tensor
    partial: torch.Tensor
    partial_lse: torch.Tensor

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that is held on the device."""
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]

    def shape(self, requests: int) -> tuple[Config, int]:
        """How to run a batch of `requests`, and how many items run at once."""
        config = self.alone if requests == 1 and not self.ragged else self.config
        return config, _wave(config, self.group * self.heads, self.processors)


def make_workspace(
    heads: int,
    max_tokens: int,
    device: torch.device,
    *,
    q_per_request: int | None = 1,
    config: Config | None = None,
) -> Workspace:
    """Allocate for up to `max_tokens` query tokens of `heads` heads.

    q_per_request: query tokens of every request (1: decode), or None for extends of unequal
    length, whose `plan` needs qo_indptr.
    """
    capability, processors = _card(device)
    rows = heads * (q_per_request or max_tokens)
    alone = config or configure(capability, rows, alone=True)
    config = config or configure(capability, rows)
    group = q_per_request or max(1, config.rows // heads)
    groups = max_tokens if q_per_request is None else triton.cdiv(max_tokens, group)
    waves = [_wave(one, group * heads, processors) for one in (config, alone)]
    # A range is cut only if it exceeds an even share of the wave, so cut ranges have fewer
    # than two parts for each share.
    parts = max(min(2 * wave, wave + groups) for wave in waves)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return Workspace(
        heads=heads,
        group=group,
        ragged=q_per_request is None,
        config=config,
        alone=alone,
        processors=processors,
        capability=capability,
        items=empty(max(waves) + groups, ITEM_FIELDS.value),
        item_count=empty(1),
        token_splits=empty(max_tokens, TOKEN_FIELDS.value),
        partial=empty(parts, group * heads, NOPE.value, dtype=torch.float32),
        partial_lse=empty(parts, group * heads, dtype=torch.float32),
    )


def _wave(config: Config, rows: int, processors: int) -> int:
    """Items of `rows` query rows that run at once."""
    return max(1, processors * config.blocks // triton.cdiv(rows, config.rows))


def _card(device: torch.device) -> tuple[tuple[int, int] | None, int]:
    if device.type != "cuda":
        return None, 4
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.multi_processor_count


def plan(
    workspace: Workspace, kv_indptr: torch.Tensor, qo_indptr: torch.Tensor | None = None
) -> None:
    """Write the step's items into `workspace`: once a step, before its layers.

    kv_indptr: int32 [requests + 1], on the device. qo_indptr: the same for query tokens, for a
    ragged workspace only. Lengths stay on the device; requests of length 0 are legal.
    """
    requests = kv_indptr.shape[0] - 1
    if (qo_indptr is not None) != workspace.ragged:
        raise ValueError(
            f"qo_indptr is {'given' if qo_indptr is not None else 'missing'}: give it for a "
            "workspace made with q_per_request=None, and only then"
        )
    config, wave = workspace.shape(requests)
    plan_splits[(requests,)](
        kv_indptr,
        qo_indptr,
        workspace.items,
        workspace.item_count,
        workspace.token_splits,
        requests,
        wave,
        config.shortest,
        GROUP=workspace.group,
        RAGGED=workspace.ragged,
        TOKENS=config.tokens,
        BLOCK=PLAN_BLOCK,
    )


def attend(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    key_buffer: torch.Tensor,
    slots: torch.Tensor,
    workspace: Workspace,
    *,
    sm_scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
) -> None:
    """Attention of one layer over the planned KV ranges, written into `out` (and `lse`).

    q_nope: bfloat16 or float16 [tokens, heads, 512] and q_rope [tokens, heads, 64], last
    dimension dense, other strides free. key_buffer: float8_e4m3fn or float8_e5m2
    [rows, 1, 576], unscaled, rows a multiple of 16 bytes apart. slots: int32, row numbers in the
    order of kv_indptr. out: like q_nope. lse: float32 [tokens, heads], contiguous, in base 2 as
    FlashInfer gives it; -inf where a token sees no KV, and `out` is 0 there.

    With T query tokens a request, token t sees the first length - T + t + 1 KV tokens.
    """
    tokens, heads, _ = q_nope.shape
    _check(q_nope, q_rope, key_buffer, workspace, out)
    groups = tokens if workspace.ragged else tokens // workspace.group
    config, wave = workspace.shape(groups)
    tiles = triton.cdiv(workspace.group * heads, config.rows)
    results = (workspace.partial, workspace.partial_lse)
    outputs = (out, workspace.partial_lse if lse is None else lse)
    constants = {"HEADS": heads, "GROUP": workspace.group, "WRITE_LSE": lse is not None}
    KERNELS[config.kernel][(tiles, wave + groups)](
        q_nope,
        q_rope,
        key_buffer.view(torch.uint8),
        slots,
        workspace.items,
        workspace.item_count,
        *results,
        *outputs,
        *q_nope.stride()[:2],
        *q_rope.stride()[:2],
        key_buffer.stride(0),
        *out.stride()[:2],
        sm_scale * LOG2_E,
        ROWS=config.rows,
        TOKENS=config.tokens,
        CODEC=codec_of(key_buffer.dtype, workspace.capability),
        **_launch_options(config, workspace.capability),
        **constants,
    )
    columns, expected = _merge_shape(wave, groups)
    merge_splits[(tokens, heads, NOPE.value // columns)](
        *results,
        workspace.token_splits,
        *outputs,
        *out.stride()[:2],
        COLUMNS=columns,
        EXPECTED=expected,
        **constants,
    )


def _merge_shape(wave: int, groups: int) -> tuple[int, int]:
    """Columns of a merge program, and the splits that `plan` makes where lengths are alike.

    Few splits: whole rows. Many splits of few tokens: narrow columns give more programs.
    """
    expected = min(triton.next_power_of_2(max(wave // groups, 2)), 128)
    return NOPE.value if expected <= 16 else MERGE_TILE // expected, expected


def _launch_options(config: Config, capability: tuple[int, int] | None) -> dict[str, int]:
    options = {"num_warps": config.warps, "num_stages": config.stages}
    if config.registers is not None and capability is not None:
        options["maxnreg"] = config.registers
    return options


def _check(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    key_buffer: torch.Tensor,
    workspace: Workspace,
    out: torch.Tensor,
) -> None:
    tokens, heads, width = q_nope.shape
    if heads != workspace.heads or tokens > workspace.token_splits.shape[0]:
        raise ValueError(
            f"queries of {tokens} tokens and {heads} heads exceed a workspace for "
            f"{workspace.token_splits.shape[0]} tokens of {workspace.heads}: make a larger one"
        )
    widths = (width, q_rope.shape[-1], key_buffer.shape[-1], out.shape[-1])
    if widths != (NOPE.value, ROPE.value, WIDTH.value, NOPE.value):
        raise ValueError(
            f"rows are {widths} wide; the direct kernel takes (512, 64, 576, 512) only: "
            "use another attention backend for this model"
        )
    if key_buffer.stride(0) % 16:
        raise ValueError(
            f"rows of the pool lie {key_buffer.stride(0)} bytes apart; the direct kernel reads 16 "
            "bytes at once: lay them out a multiple of 16 bytes apart"
        )
