"""Takes steps on the backend of the sglang that is imported and on ours over it, without a GPU.

sglang's module runs as it is, over a stand-in for FlashInfer's wrapper and with "cuda" read as the
CPU. A graph is taken for what it is to a backend: a capture, then replays that plan anew, while
what the capture chose stays.

stdin:  JSON {label: [major, minor]}, compute capabilities to claim
stdout: JSON {label: {step: the largest difference of an output from stock's}}, under "refusal"
        what the factory says to a sparse model under a piecewise graph, and under "start" for each
        label, and for "drafts", what it logs of a backend and the bytes that were allocated for it
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch

HEADS, SCALE, NOPE, ROPE = 16, 192**-0.5, 512, 64
REQUESTS, CONTEXT, SLOTS = 6, 40, 150
LAYER = SimpleNamespace(
    layer_id=0, logit_cap=0.0, tp_q_head_num=HEADS, head_dim=NOPE + ROPE, v_head_dim=NOPE
)


class Wrapper:
    """FlashInfer's: planned with lengths, it reads `_kv_indices_buf` when it runs."""

    def __init__(self, _: Any, use_cuda_graph: bool = False, **buffers: Any) -> None:
        self._use_cuda_graph = use_cuda_graph
        self._qo_indptr_buf: Any = buffers.get("qo_indptr")
        self._kv_indptr_buf: Any = buffers.get("kv_indptr")
        self._kv_indices_buf: Any = buffers.get("kv_indices")
        self._float_workspace_buffer = self._int_workspace_buffer = None
        self._pin_memory_int_workspace_buffer = None
        self._cached_module = SimpleNamespace(plan=self._plan_on_host)

    def plan(self, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, *_: Any) -> None:
        self._lengths = qo_indptr.diff().tolist(), kv_indptr.diff().tolist()
        if not self._use_cuda_graph:
            self._qo_indptr_buf, self._kv_indptr_buf = qo_indptr, kv_indptr
            self._kv_indices_buf = kv_indices
            return
        self._qo_indptr_buf.copy_(qo_indptr)
        self._kv_indptr_buf.copy_(kv_indptr)
        self._kv_indices_buf[: len(kv_indices)] = kv_indices

    def _plan_on_host(self, *plan: Any) -> None:
        self._lengths = plan[3].diff().tolist(), plan[4].diff().tolist()

    def run(self, nope: Any, rope: Any, latent: Any, key_rope: Any, out: Any) -> Any:
        tokens, lengths = self._lengths
        queries = torch.cat([nope, rope], -1).double().split(tokens)
        named = self._kv_indices_buf[: sum(lengths)].long().split(lengths)
        keys = torch.cat([latent, key_rope], -1).squeeze(1).double()
        done = [attend(query, keys[rows]) for query, rows in zip(queries, named, strict=True)]
        return out.copy_(torch.cat(done))


def attend(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Causal attention of one request's last tokens, [tokens, heads, 512]."""
    scores = torch.einsum("thd,kd->thk", query, keys) * SCALE
    first = len(keys) - len(query)
    seen = torch.arange(len(keys))[None] <= torch.arange(len(query))[:, None] + first
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    return torch.einsum("thk,kd->thd", weights, keys[:, :NOPE])


def imported() -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """The forward modes, and what builds upstream's backend and ours."""
    for name in ("empty", "zeros"):
        make = getattr(torch, name)
        setattr(torch, name, lambda *a, make=make, **o: make(*a, **_on_cpu(o)))
    upstream: Any = importlib.import_module("sglang.srt.layers.attention.flashinfer_mla_backend")
    upstream.BatchMLAPagedAttentionWrapper = Wrapper
    upstream.BatchPrefillWithRaggedKVCacheWrapper = lambda *_, **__: None
    upstream.get_attention_tp_size = lambda: 1
    overlay = "sglang.srt.layers.attention.flashinfer_mla_compact.factory"
    batch: Any = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    factory: Any = importlib.import_module(overlay)
    return batch.ForwardMode, upstream.FlashInferMLAAttnBackend, factory.create_backend


def _on_cpu(options: dict[str, Any]) -> dict[str, Any]:
    return options | ({"device": "cpu"} if options.get("device") == "cuda" else {})


def runner() -> Any:
    """Its requests share a prefix; row 0 of the table is a request like any other."""
    pools: Any = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    arguments: Any = importlib.import_module("sglang.srt.server_args")
    settings = dict.fromkeys(
        ("disable_chunked_prefix_cache", "enable_metrics", "enable_pdmux"), False
    )
    sizes = {"chunked_prefill_size": 64, "max_prefill_tokens": 64, "attn_cp_size": 1}
    settings |= {"flashinfer_mla_disable_ragged": False, "enable_piecewise_cuda_graph": False}
    arguments.set_global_server_args_for_scheduler(
        SimpleNamespace(
            disaggregation_mode="null",
            speculative_eagle_topk=None,
            speculative_num_draft_tokens=None,
            **settings,
            **sizes,
        )
    )
    pool = pools.MLATokenToKVPool(
        SLOTS, 1, torch.float8_e4m3fn, NOPE, ROPE, 1, "cpu", enable_memory_saver=False
    )
    random = torch.randn(pool.kv_buffer[0].shape, generator=torch.Generator().manual_seed(0))
    pool.kv_buffer[0].copy_(random.to(pool.dtype).view(pool.store_dtype))
    requests = pools.ReqToTokenPool(REQUESTS, CONTEXT, "cpu", enable_memory_saver=False)
    for row in range(REQUESTS):
        own = torch.randperm(SLOTS - 10, generator=torch.Generator().manual_seed(row)) + 11
        requests.req_to_token[row] = torch.cat([torch.arange(1, 11), own])[:CONTEXT]
    model = SimpleNamespace(
        context_len=CONTEXT, num_attention_heads=HEADS, kv_lora_rank=NOPE, qk_nope_head_dim=128,
        qk_rope_head_dim=ROPE, v_head_dim=128, scaling=SCALE,
    )  # fmt: skip
    return SimpleNamespace(
        model_config=model, device="cpu", dtype=torch.bfloat16, page_size=1, use_mla_backend=True,
        req_to_token_pool=requests, token_to_kv_pool=pool, is_draft_worker=False,
    )  # fmt: skip


def batch(of: Any, mode: Any, rows: list[int], lengths: list[int], **more: Any) -> Any:
    return SimpleNamespace(
        forward_mode=mode,
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor(lengths),
        seq_lens_cpu=torch.tensor(lengths),
        seq_lens_sum=sum(lengths),
        token_to_kv_pool=of.token_to_kv_pool,
        out_cache_loc=torch.tensor(range(SLOTS - len(rows), SLOTS)),
        attn_attend_prefix_cache=None,
        spec_info=None,
        **{"input_ids": rows, **more},
    )


def forward(backend: Any, step: Any, tokens: int, writes: bool = False) -> Any:
    """One layer; the pool on the batch is the same before and after."""
    random = torch.Generator().manual_seed(tokens)
    query = torch.randn((tokens, HEADS * (NOPE + ROPE)), generator=random).bfloat16()
    key = torch.randn((tokens, 1, NOPE + ROPE), generator=random).bfloat16() if writes else None
    decodes = step.forward_mode.is_decode()
    attention = backend.forward_decode if decodes else backend.forward_extend
    pool = step.token_to_kv_pool
    out = attention(query, key, key, LAYER, step)
    assert step.token_to_kv_pool is pool
    return out


class Graph:
    """A capture of `size` requests, and replays padded up to that with a token of row 0."""

    def __init__(self, backend: Any, of: Any, mode: Any, size: int, spec: Any = None) -> None:
        self.backend, self.of, self.mode, self.size, self.spec = backend, of, mode, size, spec
        tokens = size * (spec.tokens if spec else 1)
        zeros, ones = torch.zeros(size, dtype=torch.int64), torch.ones(size, dtype=torch.int64)
        backend.init_forward_metadata_capture_cuda_graph(
            size, tokens, zeros, ones, None, mode, spec
        )
        chosen = ("forward_metadata", "_reading")
        self.chosen = {name: getattr(backend, name, None) for name in chosen}

    def replay(self, rows: list[int], lengths: list[int]) -> Any:
        padding = self.size - len(rows)
        step = batch(self.of, self.mode, rows + [0] * padding, lengths + [1] * padding)
        self.backend.init_forward_metadata_replay_cuda_graph(
            self.size, step.req_pool_indices, step.seq_lens, step.seq_lens_sum, None, self.mode,
            self.spec, step.seq_lens_cpu,
        )  # fmt: skip
        vars(self.backend).update(self.chosen)
        return forward(self.backend, step, self.size * (self.spec.tokens if self.spec else 1))


def verify_input(table: torch.Tensor, tokens: int) -> Any:
    """Upstream's type of a verification, whose indices are built in torch."""
    spec: Any = importlib.import_module("sglang.srt.speculative.spec_info")

    class Verify(spec.SpecInput):  # type: ignore[misc]
        def __init__(self) -> None:
            self.tokens = self.draft_token_num = tokens

        def get_spec_adjust_token_coefficient(self) -> tuple[int, int]:
            return tokens, tokens

        def generate_attn_arg_prefill(self, rows: Any, lengths: Any, *_: Any) -> Any:
            ends = [int(length) + tokens for length in lengths]
            named = [table[int(row), :end] for row, end in zip(rows, ends, strict=True)]
            kv_indptr = torch.tensor([0, *accumulate(ends)], dtype=torch.int32)
            qo_indptr = torch.arange(len(ends) + 1, dtype=torch.int32) * tokens
            return torch.cat(named).to(torch.int32), kv_indptr, qo_indptr, None

    return Verify()


def outputs(modes: Any, backend: Any, of: Any) -> dict[str, Any]:
    decode = batch(of, modes.DECODE, [4, 0, 2], [17, 12, 30])
    extend = batch(
        of, modes.EXTEND, [3, 1], [14, 20],
        extend_prefix_lens=torch.tensor([11, 18]), extend_prefix_lens_cpu=[11, 18],
        input_ids=range(5),
    )  # fmt: skip
    found = {}
    backend.init_forward_metadata(decode)
    found["decode"] = forward(backend, decode, 3)
    found["decode that writes"] = forward(backend, decode, 3, writes=True)
    backend.init_forward_metadata(extend)
    found["extend"] = forward(backend, extend, 5)
    backend.init_cuda_graph_state(4, 12)
    graph = Graph(backend, of, modes.DECODE, 4)
    found["padded replay"] = graph.replay([5, 2], [21, 9])
    found["next replay"] = graph.replay([5, 2, 1], [22, 10, 33])
    table = of.req_to_token_pool.req_to_token
    graph = Graph(backend, of, modes.TARGET_VERIFY, 3, verify_input(table, 3))
    found["padded verify"] = graph.replay([4, 2], [19, 8])
    return found


def differences(modes: Any, stock: Any, ours: Any, capability: list[int]) -> dict[str, float]:
    cuda: Any = torch.cuda
    cuda.get_device_capability = lambda *_: tuple(capability)
    cuda.Event = lambda: SimpleNamespace(record=lambda: None, query=lambda: True)
    wanted, actual = (
        outputs(modes, build(of), of) for build, of in [(stock, runner()), (ours, runner())]
    )
    return {
        step: float((actual[step].double() - out.double()).abs().max())
        for step, out in wanted.items()
    }


def refusal(build: Callable[[Any], Any]) -> str:
    of = runner()
    of.token_to_kv_pool.use_nsa = True
    arguments: Any = importlib.import_module("sglang.srt.server_args")
    arguments.get_global_server_args().enable_piecewise_cuda_graph = True
    try:
        return str(build(of))
    except ValueError as error:
        return str(error)


def start(make: Callable[[], Any]) -> dict[str, Any]:
    """What is logged while `make` runs, and the bytes of our tensors that are there after it."""
    package = "sglang.srt.layers.attention.flashinfer_mla_compact"
    context: Any = importlib.import_module(f"{package}.upstream.settings")
    context._buffers.clear()
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(f"{package}.factory")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    with made_by(package) as tensors:
        backend = make()
        gc.collect()
    logger.removeHandler(handler)
    held = [tensor for tensor in (made() for made in tensors) if tensor is not None]
    parts = getattr(backend, "attn_backends", [backend])
    return {
        "lines": lines,
        "buffer": parts[0].readings.gathered.buffer.untyped_storage().nbytes(),
        "allocated": sum(tensor.untyped_storage().nbytes() for tensor in held),
    }


@contextmanager
def made_by(package: str) -> Iterator[list[Callable[[], Any]]]:
    """Weak references to the tensors that modules of a package make."""
    made: list[Callable[[], Any]] = []

    def noting(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        tensor = make(*arguments, **options)
        if sys._getframe(1).f_globals["__name__"].startswith(package):
            made.append(weakref.ref(tensor))
        return tensor

    makers = {name: getattr(torch, name) for name in ("empty", "full", "zeros")}
    for name, make in makers.items():
        setattr(torch, name, partial(noting, make))
    yield made
    for name, make in makers.items():
        setattr(torch, name, make)


def starts(create: Callable[[Any], Any], capabilities: dict[str, list[int]]) -> dict[str, Any]:
    factory: Any = importlib.import_module(create.__module__)
    draft = SimpleNamespace(draft_model_runner=runner(), topk=1, speculative_num_steps=4)
    draft.draft_model_runner.server_args = SimpleNamespace(page_size=1)
    cuda: Any = torch.cuda
    found = {}
    for label, capability in capabilities.items():
        cuda.get_device_capability = lambda *_, capability=capability: tuple(capability)
        found[label] = start(lambda: create(runner()))
    found["drafts"] = start(lambda: factory.create_draft_decode_backend(draft))
    return found


def main() -> None:
    capabilities = json.load(sys.stdin)
    backends = imported()
    found: Any = {name: differences(*backends, c) for name, c in capabilities.items()}
    found["start"] = starts(backends[2], capabilities)
    found["refusal"] = refusal(backends[2])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
