"""What the backend would read from a model runner of these arguments; its pool is stood in for."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

NAME = "flashinfer_mla_compact"
BACKENDS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)
_FACTS = f"sglang.srt.layers.attention.{NAME}.upstream.runner"


def answer(
    raw: argparse.Namespace, args: Any, view: Any, backends: Sequence[str]
) -> dict[str, Any]:
    """What the arguments say, and what they come to.

    Of a command line as given: whether a flag names the backend, and one a cache dtype. Of it as
    resolved: the backends of both phases and of a draft, sizes, and the facts of an MLA model and
    of an MLA draft that reads its pool with the backend.
    """
    model, draft = _model_config(args), _draft_config(args, view, backends)
    widths = view.tp_size // (view.dp_size if view.enable_dp_attention else 1)
    return {
        "named": NAME in [getattr(raw, name, None) for name in BACKENDS],
        "dtype_given": raw.kv_cache_dtype != "auto",
        "backends": [*backends, view.speculative_draft_attention_backend],
        "heads": model.num_attention_heads // max(widths // view.attn_cp_size, 1),
        "max_total_tokens": view.max_total_tokens,
        "page_size": view.page_size or 1,
        "facts": _facts(args, view, model) if _is_mla(model) else None,
        "draft": _facts(args, view, draft, is_draft=True) if draft and _is_mla(draft) else None,
    }


def _is_mla(model: Any) -> bool:
    return bool(model.attention_arch.name == "MLA")


def _draft_config(args: Any, view: Any, backends: Sequence[str]) -> Any:
    """The config of a draft model that runs the backend, which it may inherit; None for no such."""
    path = view.speculative_draft_model_path
    named = {view.speculative_draft_attention_backend} - {None} or set(backends)
    if view.speculative_algorithm is None or not path or NAME not in named:
        return None
    module: Any = importlib.import_module("sglang.srt.configs.model_config")
    revision = view.speculative_draft_model_revision
    return module.ModelConfig.from_server_args(
        args, model_path=path, model_revision=revision, is_draft_model=True
    )


def _model_config(args: Any) -> Any:
    if hasattr(args, "get_model_config"):
        return args.get_model_config()
    module: Any = importlib.import_module("sglang.srt.configs.model_config")
    return module.ModelConfig.from_server_args(args)


def _facts(args: Any, view: Any, model: Any, is_draft: bool = False) -> dict[str, Any]:
    """As the backend reads them from a runner, whose pool is stood in for."""
    runner = SimpleNamespace(
        server_args=args,
        model_config=model,
        model=SimpleNamespace(quant_config=_quantization(model)),
        dtype=model.dtype,
        use_mla_backend=True,
        is_draft_worker=is_draft,
    )
    configs: Any = importlib.import_module("sglang.srt.configs.model_config")
    names = ("is_deepseek_dsa", "is_deepseek_nsa")  # the name changed between releases
    is_dsa = any(
        getattr(configs, name)(model.hf_config) for name in names if hasattr(configs, name)
    )
    with _published(args, view):
        row, dtype = _row(runner, view)
        runner.token_to_kv_pool = type(_pool_name(view, is_dsa), (), {})()
        vars(runner.token_to_kv_pool).update(dtype=dtype, kv_cache_dim=row, use_dsa=is_dsa)
        return dataclasses.asdict(importlib.import_module(_FACTS).runner_facts(runner))


def _published(args: Any, view: Any) -> contextlib.AbstractContextManager[object]:
    try:
        context: Any = importlib.import_module("sglang.srt.runtime_context")
    except ModuleNotFoundError:  # up to 0.5.9
        importlib.import_module("sglang.srt.server_args").set_global_server_args_for_scheduler(args)
        return contextlib.nullcontext()
    context.get_context().set_server_args(args)
    if hasattr(args, "resolve_once"):
        return contextlib.nullcontext()
    # Up to 0.5.18 sizes are those of groups, which are there only once a server has started.
    sizes = {"attn_cp_size": view.attn_cp_size, "attn_dcp_size": getattr(view, "dcp_size", 1)}
    parallel: contextlib.AbstractContextManager[object] = context.get_parallel().override(**sizes)
    return parallel


def _quantization(model: Any) -> Any:
    """What a checkpoint states of its quantisation, where the runner looks for a cache dtype."""
    if model.quantization is None:
        return None
    weights: Any = importlib.import_module("sglang.srt.model_loader.weight_utils")
    load: Any = importlib.import_module("sglang.srt.configs.load_config")
    return weights.get_quant_config(model, load.LoadConfig(), {})


def _row(runner: Any, view: Any) -> tuple[int, Any]:
    """Values of a row of the pool, and the pool's dtype."""
    try:
        pools: Any = importlib.import_module("sglang.srt.mem_cache.kv_cache_configurator")
        dtypes: Any = importlib.import_module("sglang.srt.mem_cache.kv_cache_dtype")
    except ModuleNotFoundError:  # up to 0.5.9 these are methods of the runner
        kind = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
        kind.configure_kv_cache_dtype(runner)
        return kind.calculate_mla_kv_cache_dim(runner), runner.kv_cache_dtype
    known = {
        "server_args": runner.server_args,
        "server_args_kv_cache_dtype": view.kv_cache_dtype,
        "model_config": runner.model_config,
        "model": runner.model,
        "model_dtype": runner.dtype,
        "is_draft_worker": runner.is_draft_worker,
        "is_dflash": False,
        "speculative_draft_attention_backend": None,
        "speculative_draft_kv_cache_dtype": getattr(view, "speculative_draft_kv_cache_dtype", None),
    }
    known["kv_cache_dtype"] = dtype = _call(dtypes.configure_kv_cache_dtype, known)[1]
    return _call(pools.calculate_mla_kv_cache_dim, known), dtype


def _call(function: Any, known: Mapping[str, Any]) -> Any:
    """The function with what it takes of `known`, which differs between releases."""
    return function(**{key: known[key] for key in inspect.signature(function).parameters})


def _pool_name(view: Any, is_dsa: bool) -> str:
    """The class of the pool, as the configurator picks it."""
    kind = "DSATokenToKVPool" if is_dsa else "MLATokenToKVPool"
    if getattr(view, "enable_kv_cache_sharding", False):
        return f"PageInterleave{kind}"
    if is_dsa and getattr(view, "enable_hisparse", False):
        return f"HiSparse{kind}"
    if is_dsa and getattr(view, "enable_dsa_cache_layer_split", False) and view.attn_cp_size > 1:
        return f"LayerSplit{kind}"
    fp4 = not is_dsa and "fp4" in view.kv_cache_dtype
    return f"{kind}FP4" if fp4 else kind
