"""What a server's arguments ask of the backend, as facts for the module that the backend asks."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
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
BACKEND_FLAGS = (
    "--attention-backend",
    "--decode-attention-backend",
    "--prefill-attention-backend",
    "--speculative-draft-attention-backend",
)
_VALUES = (
    *BACKEND_FLAGS,
    "--cuda-graph-backend-prefill",
    "--speculative-algorithm",
    "--disaggregation-mode",
)
_NUMBERS = ("--speculative-eagle-topk", "--max-total-tokens")
# What names arguments elsewhere, changes the model's config, or may be refused: sglang alone tells.
_ELSEWHERE = (
    "--config",
    "--json-model-override-args",
    "--quantization",
    "--enable-deterministic-inference",
    "--enable-mis",
)
# A line of a --config file that needs no YAML to be read.
_PLAIN = re.compile(r"([a-z][a-z0-9-]*): +([\w./+-]+) *")
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
# The newest release whose rows follow either phase, in whatever role, and never tilelang.
_ROLES_SHARE_ROWS = (0, 5, 17)


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
        options, others = parser.parse_known_args(_with_config(list(arguments)))
        flags = (argument.partition("=")[0] for argument in others)
        options.passed_over = [flag for flag in flags if flag.startswith("--")]
        options.unjudged = list(_unjudged(options, parser))
        return options
    except argparse.ArgumentError as error:
        raise ValueError(f"the server arguments are not understood: {error}.") from None


def _with_config(arguments: list[str]) -> list[str]:
    """The arguments behind those of a --config file, where each of its lines is a plain one."""
    if "--config" not in arguments[:-1]:
        return arguments
    place = arguments.index("--config")
    try:
        lines = Path(arguments[place + 1]).read_text().splitlines()
    except (OSError, ValueError):
        return arguments
    found = [_PLAIN.fullmatch(line) for line in lines if line.strip() and line[0] != "#"]
    pairs = [(match[1], match[2]) for match in found if match]
    if len(pairs) < len(found):
        return arguments
    given = [[f"--{key}", *([value] * (value != "true"))] for key, value in pairs]
    stated = [part for flag in given if flag[1:] != ["false"] for part in flag]
    return [*stated, *arguments[:place], *arguments[place + 2 :]]


def _unjudged(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Why this table can't tell what sglang makes of the arguments; each a few words."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    for flag in options.passed_over:
        if flag in _ELSEWHERE:
            yield f"{flag} is read by sglang alone"
        elif any(one.startswith(flag.replace("_", "-")) for one in known):
            yield f"{flag} may be short for another flag: write it in full"
    config = model_config(options)
    if "index_topk" in (config or {}) and "--cuda-graph-config" in options.passed_over:
        yield "--cuda-graph-config is read by sglang alone"
    if options.model_path is None:
        yield "no --model-path is given"
    elif config is None:
        yield f"{options.model_path} is no folder with a readable config.json"
    elif options.kv_cache_dtype == "fp8_e5m2" and "index_topk" in config:
        yield "sglang may refuse fp8_e5m2 for this model: use --kv-cache-dtype fp8_e4m3"
    elif options.kv_cache_dtype == "auto" and "index_topk" in config:
        yield "sglang picks the cache dtype of this model by card: give --kv-cache-dtype"
    elif options.kv_cache_dtype == "auto" and _may_state_dtype(config.get("quantization_config")):
        yield "the checkpoint may state a cache dtype: give --kv-cache-dtype"


def _may_state_dtype(quantization: Any) -> bool:
    """Whether a checkpoint may state a cache dtype: for one in FP8 it stands in its config."""
    if not isinstance(quantization, dict):
        return quantization is not None
    stated = {"kv_cache_quant_algo", "kv_cache_scheme"} & quantization.keys()
    return bool(stated) or quantization.get("quant_method") != "fp8"


def names_backend(options: argparse.Namespace, name: str) -> bool:
    """Whether a flag asks for `name`, or may do so where this table does not read it."""
    given = [getattr(options, flag[2:].replace("-", "_")) for flag in BACKEND_FLAGS]
    may_name = ("--config", *BACKEND_FLAGS)
    return name in given or any(one.startswith(f) for one in may_name for f in options.passed_over)


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
    raw = _raw_dsa_rows(options, capability, release)
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


def _raw_dsa_rows(options: argparse.Namespace, capability: str | None, release: str) -> bool:
    """Whether a DSA pool has raw rows: trtllm for either phase, or tilelang for both.

    Unset, both are trtllm on compute capability 10 and something else on other cards. A server
    of one role asks its own phase alone.
    """
    default = "trtllm" if (capability or "").startswith("10.") else None
    prefill = options.dsa_prefill_backend or default
    decode = options.dsa_decode_backend or default
    roles = {"prefill": {prefill}, "decode": {decode}}
    if _numbers(release) <= _ROLES_SHARE_ROWS:
        return "trtllm" in (prefill, decode)
    asked = roles.get(options.disaggregation_mode, {prefill, decode})
    return "trtllm" in asked or {prefill, decode} == {"tilelang"}


def _prefill_graph(options: argparse.Namespace, release: str) -> str:
    if options.disable_prefill_cuda_graph or options.disable_cuda_graph:
        return "disabled"
    if options.enable_piecewise_cuda_graph:
        return "tc_piecewise"
    default = "disabled" if _numbers(release) <= _PREFILL_GRAPH_ON_REQUEST else "breakable"
    return options.cuda_graph_backend_prefill or default


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:3])


def _topk(options: argparse.Namespace) -> int:
    if options.speculative_algorithm is None:
        return 0
    if options.speculative_algorithm.upper() == "NGRAM":
        return int(options.speculative_ngram_max_bfs_breadth)
    return int(options.speculative_eagle_topk or 1)
