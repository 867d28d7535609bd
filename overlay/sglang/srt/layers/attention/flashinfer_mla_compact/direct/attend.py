"""Split-KV MLA attention that reads FP8 rows straight from the pool.

`plan` cuts the step's KV ranges into items on the device; `attend` then runs once a layer with a
grid that depends on shapes alone, so a captured graph may be replayed with other lengths and
slots. Neither call allocates. There is no buffer to overflow: any number of slots is legal.
"""

from __future__ import annotations

import math

import torch
import triton

from .configs import KERNELS, Config, codec_of
from .splits import merge_splits, plan_splits
from .work import NOPE, ROPE, WIDTH
from .workspace import Shape, Workspace

LOG2_E = math.log2(math.e)
MERGE_TILE = 8192  # float32 elements that a merge program holds, 64 a thread
# With 16 bytes a thread and load, a thread has whole columns: sums need no exchange.
MERGE_WARPS = {torch.float32: 4, torch.float16: 2}
PLAN_BLOCK = 128
HOPPER = (9, 0)


class CompileError(RuntimeError):
    """A kernel of that name, or one that goes with it, could not be compiled or loaded."""

    def __init__(self, kernel: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.kernel = kernel


def plan(
    workspace: Workspace, kv_indptr: torch.Tensor, qo_indptr: torch.Tensor | None = None
) -> None:
    """Write the step's items into `workspace`: once a step, before its layers.

    kv_indptr: int32 [requests + 1], on the device. qo_indptr: the same for query tokens, for a
    ragged workspace only. Lengths stay on the device; requests of length 0 are legal.
    """
    shape, requests = workspace.shape, kv_indptr.shape[0] - 1
    if (qo_indptr is not None) != shape.ragged:
        raise ValueError(
            f"qo_indptr is {'given' if qo_indptr is not None else 'missing'}: give it for a "
            "shape made with q_per_request=None, and only then"
        )
    config, wave = shape.of_batch(requests)
    plan_splits[(requests,)](
        kv_indptr,
        qo_indptr,
        workspace.items,
        workspace.item_count,
        workspace.token_splits,
        requests,
        wave,
        config.shortest,
        GROUP=shape.group,
        RAGGED=shape.ragged,
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
    shape = workspace.shape
    groups = shape.groups(tokens)
    config, wave = shape.of_batch(groups)
    tiles = triton.cdiv(shape.rows, config.rows)
    early = _starts_early(shape, config)
    chained = {"launch_pdl": True} if early else {}
    results = (workspace.partial, workspace.partial_lse)
    outputs = (out, workspace.partial_lse if lse is None else lse)
    constants = {
        "HEADS": heads,
        "GROUP": shape.group,
        "WRITE_LSE": lse is not None,
        "EARLY": early,
    }
    KERNELS[config.kernel][(tiles * (wave + groups),)](
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
        CODEC=codec_of(key_buffer.dtype, shape.capability),
        **_launch_options(config, shape.capability),
        **constants,
        **chained,
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
        num_warps=MERGE_WARPS[shape.partial],
        **({"launch_pdl": True} if early else {}),
    )


def warm_up(
    shape: Shape,
    max_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    pool_dtype: torch.dtype,
) -> None:
    """Compile and load every kernel that steps of this shape may need; nothing is kept.

    max_tokens: most query tokens of a step. dtype: of queries and output. pool_dtype: of the pool.

    Raises:
        CompileError: one of them can't be compiled or loaded.
    """
    workspace = Workspace(shape, max_tokens, device)
    rows = torch.zeros((1, 1, WIDTH.value), dtype=torch.uint8, device=device).view(pool_dtype)
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    for groups in _kinds_of_batch(shape, max_tokens):
        tokens = groups if shape.ragged else groups * shape.group
        starts = torch.zeros(groups + 1, dtype=torch.int32, device=device)
        query = torch.zeros((tokens, shape.heads, WIDTH.value), dtype=dtype, device=device)
        nope, rope = query.split([NOPE.value, ROPE.value], -1)
        try:
            plan(workspace, starts, starts if shape.ragged else None)
            attend(nope, rope, rows, slots, workspace, sm_scale=1.0, out=torch.zeros_like(nope))
            torch.cuda.synchronize(device)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler raises what it likes
            raise CompileError(shape.of_batch(groups)[0].kernel, error) from error


def _kinds_of_batch(shape: Shape, max_tokens: int) -> list[int]:
    """Numbers of groups, one for each set of kernels that some batch needs."""
    most = max(1, max_tokens if shape.ragged else max_tokens // shape.group)
    kinds: dict[tuple[bool, tuple[int, int]], int] = {}
    wave = shape.of_batch(2)[1]
    for groups in range(1, min(most, wave + 1) + 1):  # more groups merge as those do
        alone = shape.of_batch(groups)[0] is not shape.config
        kinds.setdefault((alone, _merge_shape(shape.of_batch(groups)[1], groups)), groups)
    return list(kinds.values())


def _starts_early(shape: Shape, config: Config) -> bool:
    """Whether both kernels may be launched before the ones ahead of them have ended.

    They wait for those themselves (programmatic dependent launch), which hides their launches.
    """
    return config.kernel != "plain" and shape.capability is not None and shape.capability >= HOPPER


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
    if heads != workspace.shape.heads or tokens > workspace.max_tokens:
        raise ValueError(
            f"queries of {tokens} tokens and {heads} heads exceed a workspace for "
            f"{workspace.max_tokens} tokens of {workspace.shape.heads}: make a larger one"
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
