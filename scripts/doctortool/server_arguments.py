"""What a server's arguments ask of the backend, as facts for the module that the backend asks."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from overlaytool.pin import REPOSITORY

OVERLAY = REPOSITORY / "overlay/sglang/srt/layers/attention/flashinfer_mla_compact"
_PACKAGE = "flashinfer_mla_compact"
_POOL_DTYPES = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "bf16": "bfloat16",
    "auto": "bfloat16",
    "fp4_e2m1": "float4_e2m1fn_x2",
}
_QUANTISED_DSA_ROW = 656
_VALUES = (
    "--attention-backend",
    "--decode-attention-backend",
    "--prefill-attention-backend",
    "--speculative-draft-attention-backend",
    "--cuda-graph-backend-prefill",
    "--speculative-algorithm",
    "--disaggregation-mode",
)
_NUMBERS = ("--speculative-eagle-topk", "--max-total-tokens")
# What names arguments elsewhere, or changes the model's config: only sglang itself can tell.
_ELSEWHERE = ("--config", "--json-model-override-args")
_SWITCHES = (
    "--enable-unified-memory",
    "--enable-pdmux",
    "--enable-hisparse",
    "--enable-dp-attention",
    "--disable-prefill-cuda-graph",
    "--disable-cuda-graph",
    "--enable-piecewise-cuda-graph",
    "--enable-dsa-cache-layer-split",
)
# The newest release that runs prefill in a graph only where it is told to.
_PREFILL_GRAPH_ON_REQUEST = (0, 5, 9)


def load(name: str) -> Any:
    """The overlay's module `support` or `policy`, loaded from here: neither needs sglang."""
    if _PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, OVERLAY / "__init__.py", submodule_search_locations=[str(OVERLAY)]
        )
        assert spec is not None and spec.loader is not None, OVERLAY
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_PACKAGE])
    return importlib.import_module(f"{_PACKAGE}.{name}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The server arguments that the backend cares about; all others are passed over.

    Raises `ValueError` with one sentence where one of them has no value or a wrong one.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in _VALUES:
        parser.add_argument(flag)
    for flag in _NUMBERS:
        parser.add_argument(flag, type=int)
    for flag in _SWITCHES:
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--model-path", "--model")
    parser.add_argument("--dsa-prefill-backend", "--nsa-prefill-backend")
    parser.add_argument("--dsa-decode-backend", "--nsa-decode-backend")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--dp-size", "--data-parallel-size", "--dp", type=int, default=1)
    parser.add_argument("--dcp-size", "--decode-context-parallel-size", type=int, default=1)
    parser.add_argument("--attn-cp-size", type=int, default=1)
    parser.add_argument("--speculative-ngram-max-bfs-breadth", type=int, default=10)
    try:
        options, others = parser.parse_known_args(list(arguments))
        options.unjudged = list(_unjudged(options, others, parser))
        return options
    except argparse.ArgumentError as error:
        raise ValueError(f"the server arguments are not understood: {error}.") from None


def _unjudged(
    options: argparse.Namespace, others: Sequence[str], parser: argparse.ArgumentParser
) -> Iterator[str]:
    """Why this table can't tell what sglang makes of the arguments; each a few words."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    for flag in (argument.partition("=")[0] for argument in others):
        if flag in _ELSEWHERE:
            yield f"{flag} is read by sglang alone"
        elif flag.startswith("--") and any(one.startswith(flag) for one in known):
            yield f"{flag} may be short for another flag: write it in full"
    if options.model_path is None:
        return
    config = model_config(options)
    if config is None:
        yield f"{options.model_path} is no folder with a readable config.json"
    elif options.kv_cache_dtype == "auto" and "index_topk" in config:
        yield "sglang picks the cache dtype of this model by card: give --kv-cache-dtype"
    elif options.kv_cache_dtype == "auto" and "quantization_config" in config:
        yield "the checkpoint may state a cache dtype: give --kv-cache-dtype"


def names_backend(options: argparse.Namespace, name: str) -> bool:
    """Whether any of the attention-backend flags asks for `name`."""
    given = (
        options.attention_backend,
        options.decode_attention_backend,
        options.prefill_attention_backend,
        options.speculative_draft_attention_backend,
    )
    return name in given


def model_config(options: argparse.Namespace) -> dict[str, Any] | None:
    """The model's config.json; None where the model is no local folder that has one.

    A multimodal model keeps what matters here in `text_config`.
    """
    if options.model_path is None:
        return None
    try:
        config = json.loads((Path(options.model_path) / "config.json").read_text())
        return {**config, **config.get("text_config", {})}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def query_heads(options: argparse.Namespace) -> int | None:
    """Query heads of a rank; None where no local config.json states the model's."""
    heads = (model_config(options) or {}).get("num_attention_heads")
    share = options.tp_size // (options.dp_size if options.enable_dp_attention else 1)
    return heads // max(share, 1) if isinstance(heads, int) else None


def facts(options: argparse.Namespace, support: Any, capability: str | None, release: str) -> Any:
    """The `Facts` of such a server; what the model's config does not state keeps its default."""
    config = model_config(options) or {}
    is_dsa = config.get("index_topk") is not None
    dtype = _POOL_DTYPES.get(options.kv_cache_dtype, options.kv_cache_dtype)
    given = {key: config.get(key) for key in ("kv_lora_rank", "qk_rope_head_dim")}
    known = {key: value for key, value in given.items() if isinstance(value, int)}
    row = known.get("kv_lora_rank", 512) + known.get("qk_rope_head_dim", 64)
    raw = _raw_dsa_rows(options, capability) and options.disaggregation_mode != "prefill"
    quantised = is_dsa and dtype == "float8_e4m3fn" and not raw
    return support.Facts(
        **known,
        pool_class=_pool_class(options, dtype),
        pool_dtype=dtype,
        kv_cache_dim=_QUANTISED_DSA_ROW if quantised else row,
        is_dsa=is_dsa,
        prefill_graph=_prefill_graph(options, release),
        dcp_size=options.dcp_size,
        cp_size=options.attn_cp_size,
        unified_memory=options.enable_unified_memory,
        pdmux=options.enable_pdmux,
        topk=_topk(options),
        experimental=support.allows_experimental(),
        plan_stream=support.is_set(support.PLAN_STREAM_VARIABLE),
        glue_graph=support.is_set(support.GLUE_GRAPH_VARIABLE),
    )


def _pool_class(options: argparse.Namespace, dtype: str) -> str:
    if options.enable_hisparse:
        return "HiSparseDSATokenToKVPool"
    if options.enable_dsa_cache_layer_split:
        return "LayerSplitDSATokenToKVPool"
    return "MLATokenToKVPoolFP4" if dtype.startswith("float4") else "MLATokenToKVPool"


def _raw_dsa_rows(options: argparse.Namespace, capability: str | None) -> bool:
    """Whether a DSA pool has raw rows: trtllm for either phase, or tilelang for both.

    Unset, both are trtllm on compute capability 10 and something else on other cards.
    """
    given = {options.dsa_prefill_backend, options.dsa_decode_backend}
    if given == {None}:
        return (capability or "").startswith("10.")
    return "trtllm" in given or given == {"tilelang"}


def _prefill_graph(options: argparse.Namespace, release: str) -> str:
    if options.disable_prefill_cuda_graph or options.disable_cuda_graph:
        return "disabled"
    if options.enable_piecewise_cuda_graph:
        return "tc_piecewise"
    numbers = tuple(int(part) for part in release.split(".")[:3])
    default = "disabled" if numbers <= _PREFILL_GRAPH_ON_REQUEST else "breakable"
    return options.cuda_graph_backend_prefill or default


def _topk(options: argparse.Namespace) -> int:
    if options.speculative_algorithm is None:
        return 0
    if options.speculative_algorithm.upper() == "NGRAM":
        return int(options.speculative_ngram_max_bfs_breadth)
    return int(options.speculative_eagle_topk or 1)
