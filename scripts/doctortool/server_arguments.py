"""What a server's arguments ask of the backend, as facts for the module that the backend asks."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlaytool.pin import REPOSITORY

from doctortool import known_flags

OVERLAY = REPOSITORY / "overlay/sglang/srt/layers/attention/flashinfer_mla_compact"
_POOL_DTYPES = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "bf16": "bfloat16",
    "fp4_e2m1": "float4_e2m1fn_x2",
}
_QUANTISED_DSA_ROW = 656
# The newest release that runs prefill in a graph only where it is told to.
_PREFILL_GRAPH_ON_REQUEST = (0, 5, 9)
# The newest release whose rows follow either phase, in whatever role.
_ROLES_SHARE_ROWS = (0, 5, 17)
# Models with MLA, and the first release that this table knows them in.
_MODELS = dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), (0, 5, 9))
_MODELS |= dict.fromkeys(
    ("deepseek_v32", "glm_moe_dsa", "kimi_k2", "kimi_k25", "glm5_next_text"), known_flags.SINCE
)


def load(name: str) -> Any:
    """The overlay's module `support` or `policy`, loaded from here: neither needs sglang."""
    if known_flags.NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            known_flags.NAME, OVERLAY / "__init__.py", submodule_search_locations=[str(OVERLAY)]
        )
        assert spec is not None and spec.loader is not None, OVERLAY
        sys.modules[known_flags.NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known_flags.NAME])
    return importlib.import_module(f"{known_flags.NAME}.{name}")


def unjudged(options: argparse.Namespace, capability: str, release: str) -> list[str]:
    """Why this table can't tell what sglang makes of the arguments; each a few words."""
    found = list(known_flags.unknown(options, release))
    config = model_config(options)
    if options.model_path is None:
        found.append("no --model-path is given")
    elif config is None:
        found.append(f"{options.model_path} is no folder with a readable config.json")
    elif not _is_known(config, release):
        found.append(f"sglang {release} may not know a {config.get('model_type')} model")
    elif "index_topk" in config:
        found += filter(None, [_unjudged_dsa(options, config, capability, release)])
    elif options.kv_cache_dtype == "auto" and _may_state_dtype(options.model_path, config):
        found.append("the checkpoint may state a cache dtype: give --kv-cache-dtype")
    if names_backend(options) and not any(_names(options)[:3]):
        found.append("sglang alone tells what a draft reads")
    return found


def _is_known(config: Mapping[str, Any], release: str) -> bool:
    since = _MODELS.get(str(config.get("model_type")))
    return since is not None and known_flags.numbers_of(release) >= since


def _unjudged_dsa(
    options: argparse.Namespace, config: Mapping[str, Any], capability: str, release: str
) -> str | None:
    if options.kv_cache_dtype == "fp8_e5m2":
        return "sglang may refuse fp8_e5m2 for this model: use --kv-cache-dtype fp8_e4m3"
    if options.kv_cache_dtype == "auto":
        return "sglang picks the cache dtype of this model by card: give --kv-cache-dtype"
    if options.dcp_size > 1 or options.attn_cp_size > 1:
        return "sglang picks the rows of this model's pool by its context parallelism"
    if options.disaggregation_mode == "decode" and _stated_graph(options) is None:
        return "sglang may run no prefill graph: give --cuda-graph-backend-prefill"
    glm = str(config.get("model_type")).startswith("glm")
    asked = options.dsa_prefill_backend and options.dsa_decode_backend
    known = capability.startswith(("9.", "10.")) or (glm and capability.startswith("12."))
    if asked or (known and known_flags.numbers_of(release) >= known_flags.SINCE):
        return None
    return "sglang picks by card: give --dsa-prefill-backend and --dsa-decode-backend"


def _may_state_dtype(model: str, config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint may state a cache dtype: for one in FP8 it stands in its config."""
    quantization = config.get("quantization_config")
    if (Path(model) / "hf_quant_config.json").exists():
        return True
    if not isinstance(quantization, dict):
        return quantization is not None
    stated = {"kv_cache_quant_algo", "kv_cache_scheme"} & quantization.keys()
    return bool(stated) or quantization.get("quant_method") != "fp8"


def names_backend(options: argparse.Namespace) -> bool:
    """Whether a flag asks for the backend, or may do so where this table does not read it."""
    may_name = ("--config", *known_flags.BACKEND_FLAGS)
    return any(_names(options)) or any(
        one.startswith(f) for one in may_name for f in options.passed_over
    )


def _names(options: argparse.Namespace) -> list[bool]:
    fields = (flag[2:].replace("-", "_") for flag in known_flags.BACKEND_FLAGS)
    return [getattr(options, field) == known_flags.NAME for field in fields]


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
    share = options.tp_size // max(options.dp_size if options.enable_dp_attention else 1, 1)
    return heads // max(share, 1) if isinstance(heads, int) else None


def facts(options: argparse.Namespace, support: Any, capability: str | None, release: str) -> Any:
    """The `Facts` of such a server; what the model's config does not state keeps its default."""
    config = model_config(options) or {}
    is_dsa = config.get("index_topk") is not None
    stated = options.kv_cache_dtype if options.kv_cache_dtype != "auto" else _model_dtype(config)
    dtype = _POOL_DTYPES.get(stated, stated)
    given = {key: config.get(key) for key in ("kv_lora_rank", "qk_rope_head_dim")}
    known = {key: value for key, value in given.items() if isinstance(value, int)}
    row = known.get("kv_lora_rank", 512) + known.get("qk_rope_head_dim", 64)
    raw = _raw_dsa_rows(options, capability, release)
    quantised = is_dsa and dtype == "float8_e4m3fn" and not raw
    return support.Facts(
        **known,
        pool_class=_pool_class(options, dtype, is_dsa),
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


def _model_dtype(config: Mapping[str, Any]) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def _pool_class(options: argparse.Namespace, dtype: str, is_dsa: bool) -> str:
    if is_dsa:
        return "DSATokenToKVPool"
    return "MLATokenToKVPoolFP4" if dtype.startswith("float4") else "MLATokenToKVPool"


def _raw_dsa_rows(options: argparse.Namespace, capability: str | None, release: str) -> bool:
    """Whether a DSA pool has raw rows: trtllm for either phase.

    Unset, both are trtllm on compute capability 10 and something else on other cards. A server
    of one role asks its own phase alone.
    """
    default = "trtllm" if (capability or "").startswith("10.") else None
    prefill = options.dsa_prefill_backend or default
    decode = options.dsa_decode_backend or default
    roles = {"prefill": {prefill}, "decode": {decode}}
    if known_flags.numbers_of(release) <= _ROLES_SHARE_ROWS:
        return "trtllm" in (prefill, decode)
    asked = roles.get(options.disaggregation_mode, {prefill, decode})
    return "trtllm" in asked


def _prefill_graph(options: argparse.Namespace, release: str) -> str:
    default = (
        "disabled" if known_flags.numbers_of(release) <= _PREFILL_GRAPH_ON_REQUEST else "breakable"
    )
    return _stated_graph(options) or default


def _stated_graph(options: argparse.Namespace) -> str | None:
    """The prefill graph that the arguments name; a name counts more than a switch."""
    stated: str | None = options.cuda_graph_backend_prefill
    if stated := stated or known_flags.graph_of_prefill(options):
        return stated
    if options.disable_prefill_cuda_graph or options.disable_cuda_graph:
        return "disabled"
    return "tc_piecewise" if options.enable_piecewise_cuda_graph else None


def _topk(options: argparse.Namespace) -> int:
    if (options.speculative_algorithm or "").upper() == "NGRAM":
        return int(options.speculative_ngram_max_bfs_breadth)
    return int(options.speculative_eagle_topk or 0)
