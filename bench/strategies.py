"""Every way to run one layer's attention that `bench.kernels` compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.cases import NOPE, PAGE, SM_SCALE, WIDTH, Case
from bench.overlay import load

Attention = Callable[[torch.Tensor], torch.Tensor]
KERNELS = ("plain", "mma", "wgmma")
FIELDS = {"-": None, **{name: name for name in KERNELS}}  # of a Config that are not whole numbers
WORKSPACE_BYTES = 256 << 20
SGLANG_SPLITS = 8  # sglang's default of --triton-attention-num-kv-splits


@dataclass(frozen=True)
class Strategy:
    """One way to attend.

    Attributes:
        prepare: makes, for a case, a function of a layer's rows that returns the output.
        wide: the rows are BF16 instead of FP8.
        whole: it reads the whole pool, not only the active rows.
        paged: it needs each request in pages of 64 tokens.
    """

    prepare: Callable[[Case], Attention]
    wide: bool = False
    whole: bool = False
    paged: bool = False

    def bytes_a_layer(self, case: Case) -> int:
        rows = case.pools.rows if self.whole else case.spot.active
        return rows * WIDTH * (2 if self.wide else 1)


_workspaces: dict[torch.device, torch.Tensor] = {}


def _workspace(device: torch.device) -> torch.Tensor:
    if device not in _workspaces:
        _workspaces[device] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return _workspaces[device]


def _flashinfer(
    case: Case, backend: str, indices: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> Attention:
    """FlashInfer's MLA kernel over rows of `dtype`, planned for `indices`."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    wrapper = BatchMLAPagedAttentionWrapper(_workspace(case.device), backend=backend)
    wrapper.plan(
        case.qo_indptr,
        case.kv_indptr,
        indices,
        case.lengths,
        case.spot.heads,
        NOPE,
        WIDTH - NOPE,
        1,
        case.spot.queries > 1,
        SM_SCALE,
        torch.bfloat16,
        dtype,
    )
    nope, rope = case.query[..., :NOPE], case.query[..., NOPE:]
    scales = {} if dtype == torch.bfloat16 else {"ckv_scale": 1.0, "kpe_scale": 1.0}

    def run(rows: torch.Tensor) -> torch.Tensor:
        latent, key_rope = rows[..., :NOPE], rows[..., NOPE:]
        wrapper.run(nope, rope, latent, key_rope, out=case.out, **scales)
        return case.out

    return run


def _stock(case: Case) -> Attention:
    run = _flashinfer(case, "auto", case.slots)
    return lambda rows: run(rows.to(torch.bfloat16))


def _bf16(backend: str) -> Callable[[Case], Attention]:
    return lambda case: _flashinfer(case, backend, case.slots)


def _gather(backend: str) -> Callable[[Case], Attention]:
    def prepare(case: Case) -> Attention:
        order = torch.arange(case.spot.active, dtype=torch.int32, device=case.device)
        gather, run = _gather_alone(case), _flashinfer(case, backend, order)
        return lambda rows: run(gather(rows))

    return prepare


def _gather_alone(case: Case) -> Attention:
    gather = load("gather.gather")
    active = case.spot.active
    count = torch.tensor([active], dtype=torch.int32, device=case.device)
    compact = torch.zeros(active, 1, WIDTH, dtype=torch.bfloat16, device=case.device)
    programs = gather.grid_programs(case.device)

    def run(rows: torch.Tensor) -> torch.Tensor:
        gather.gather_rows(rows, case.slots, count, compact, programs)
        return compact

    return run


def direct(choose: Callable[[Any, int], Any] | None = None, ragged: bool = False) -> Strategy:
    """The direct kernel.

    choose: makes a Config of its module of configurations and the query rows of a request.
    ragged: as for requests that differ in their query tokens.
    """

    def prepare(case: Case) -> Attention:
        kernel: Any = load("direct.attend")
        spot = case.spot
        config = choose(load("direct.configs"), spot.heads * spot.queries) if choose else None
        space = load("direct.workspace").make_workspace(
            spot.heads,
            spot.load.batch * spot.queries,
            case.device,
            q_per_request=None if ragged else spot.queries,
            config=config,
        )
        kernel.plan(space, case.kv_indptr, case.qo_indptr if ragged else None)
        nope, rope = case.query[..., :NOPE], case.query[..., NOPE:]

        def run(rows: torch.Tensor) -> torch.Tensor:
            kernel.attend(nope, rope, rows, case.slots, space, sm_scale=SM_SCALE, out=case.out)
            return case.out

        return run

    return Strategy(prepare)


def _portable(configs: Any, rows: int) -> Any:
    """As built for sm_100 and, but for their shared memory, sm_80 to sm_120: without wgmma."""
    return configs.configure((10, 0), rows)


def _small(configs: Any, rows: int) -> Any:
    """As sm_86, sm_89 and sm_120 hold it: one block an SM, in 100 KiB."""
    return configs.configure((8, 9), rows)


def _one_token(case: Case) -> None:
    if case.spot.queries > 1:
        raise ValueError("decodes one query token a request")


def _native_fp8(case: Case) -> Attention:
    return _flashinfer(case, "fa3", case.slots, torch.float8_e4m3fn)


def _sglang_triton(case: Case) -> Attention:
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
    from sglang.kernels.ops.attention.metadata import get_num_kv_splits_triton

    _one_token(case)
    batch, heads = case.spot.load.batch, case.spot.heads
    splits = torch.empty(batch, dtype=torch.int32, device=case.device)
    cores = torch.cuda.get_device_properties(case.device).multi_processor_count
    get_num_kv_splits_triton[(1,)](
        splits, case.lengths, batch, 1, heads, 1, SGLANG_SPLITS, cores, MAX_NUM_SEQ=256
    )
    logits = torch.empty(batch, heads, SGLANG_SPLITS, NOPE, device=case.device)
    lse = torch.empty(batch, heads, SGLANG_SPLITS, device=case.device)

    def run(rows: torch.Tensor) -> torch.Tensor:
        decode_attention_fwd(
            case.query,
            rows,
            rows[..., :NOPE],
            case.out,
            case.kv_indptr,
            case.slots,
            logits,
            lse,
            splits,
            SGLANG_SPLITS,
            SM_SCALE,
            1.0,
            1.0,
            has_mla=True,
        )
        return case.out

    return run


def _flashmla(case: Case) -> Attention:
    from sgl_kernel.flash_mla import (
        flash_mla_with_kvcache,
        get_mla_metadata,
    )

    _one_token(case)
    heads = case.spot.heads
    metadata, splits = get_mla_metadata(case.lengths, heads, 1, is_fp8_kvcache=True)
    table = case.block_table()
    one = torch.ones(1, device=case.device)

    def run(rows: torch.Tensor) -> torch.Tensor:
        pages = rows[: rows.shape[0] // PAGE * PAGE].view(-1, PAGE, 1, WIDTH)
        out: torch.Tensor = flash_mla_with_kvcache(
            q=case.query[:, None].to(rows.dtype),
            k_cache=pages,
            block_table=table,
            cache_seqlens=case.lengths,
            head_dim_v=NOPE,
            tile_scheduler_metadata=metadata,
            num_splits=splits,
            softmax_scale=SM_SCALE,
            causal=True,
            descale_q=one,
            descale_k=one,
        )[0]
        return out[:, 0]

    return run


STRATEGIES = {
    "stock": Strategy(_stock, whole=True),
    "bf16-fa3": Strategy(_bf16("fa3"), wide=True),
    "bf16-fa2": Strategy(_bf16("fa2"), wide=True),
    "gather-fa3": Strategy(_gather("fa3")),
    "gather-fa2": Strategy(_gather("fa2")),
    "gather-alone": Strategy(_gather_alone),
    "direct": direct(),
    "direct-ragged": direct(ragged=True),
    "direct-portable": direct(_portable),
    "direct-small": direct(_small),
    "flashinfer-fp8": Strategy(_native_fp8),
    "sglang-triton": Strategy(_sglang_triton),
    "flashmla": Strategy(_flashmla, paged=True),
}


def parse(text: str) -> Strategy:
    """A strategy by its name, or the direct kernel as "direct:16/32/4/5/-/2" says.

    Raises:
        ValueError: neither.
    """
    name, _, fields = text.partition(":")
    try:
        if name != "direct" or not fields:
            return STRATEGIES[text]
        settings = [FIELDS[field] if field in FIELDS else int(field) for field in fields.split("/")]
    except (KeyError, ValueError):
        known = ", ".join(STRATEGIES)
        raise ValueError(f"{text!r} is no strategy: use one of {known}, direct:16/64/...") from None
    return direct(lambda configs, rows: configs.Config(*settings))
