"""Upstream's own MLA attention cases, run with a backend and a KV dtype of our choice.

usage: python tests/gpu/kit_cases.py BACKEND KV FIRST
  BACKEND  name of an attention backend
  KV       bfloat16 or fp8_e4m3
  FIRST    index of the first case to run

Prints a JSON object a line: {"case": ...} before a case, and its outcome after it.
exit: 0 all cases ran; 3 the CUDA context is broken, and the cases after the last one did not run
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import unittest
from collections.abc import Callable
from dataclasses import replace
from typing import Any

KIT = "sglang.test.kits.attention_unittest"
METHODS, RUNNERS = f"{KIT}.attention_methods.mla_attention", f"{KIT}.runner_modes"
DECODE_GRAPH = (f"{RUNNERS}.cuda_graph_decode_runner", "run_mla_cuda_graph_decode_case")
SPLIT_OP = (f"{RUNNERS}.split_op_runner", "run_mla_split_op_extend_case")
VERIFY = (f"{RUNNERS}.speculative_target_verify_runner", "run_mla_eagle_verify_case")
VERIFY_GRAPH = (
    f"{RUNNERS}.speculative_target_verify_runner",
    "run_mla_eagle_verify_cuda_graph_case",
)
DRAFT_GRAPH = (
    f"{RUNNERS}.speculative_draft_runner",
    "run_mla_eagle_draft_cuda_graph_runner_case",
)
EAGER = (METHODS, "run_mla_attention_case")
MODULES = [module for module, _ in (EAGER, DECODE_GRAPH, SPLIT_OP, VERIFY, DRAFT_GRAPH)]

DIMS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
# What upstream's kit allows FP8 keys in its DSA cases; its MLA tolerance is for 16-bit keys.
FP8_TOLERANCE = 2e-1

EXTEND, DECODE = "mla_extend_page_size_1", "mla_decode_page_boundary"
RAGGED = "mla_extend_ragged_page_boundary"
PLAIN = (
    EXTEND,
    "mla_extend_zero_prefix_exact_page",
    "mla_extend_zero_prefix_input_page_edges",
    "mla_extend_prefix_exact_page",
    "mla_extend_total_exact_page",
    "mla_extend_cross_page_boundary",
    RAGGED,
    "mla_extend_page32_cross_boundary",
    DECODE,
    "mla_decode_bsz1_nonzero_prefix",
)
# Name of our row -> (module, function), upstream's case, arguments. The last ones are those that
# break the context in stock, by upstream's own list of known failures.
CASES: dict[str, tuple[tuple[str, str], str, dict[str, Any]]] = {
    **{f"eager {case}": (EAGER, case, {}) for case in PLAIN},
    **{
        f"eager {case}, contiguous": (EAGER, case, {"loc_layout": "contiguous"})
        for case in (RAGGED, DECODE)
    },
    "decode graph": (DECODE_GRAPH, DECODE, {}),
    "decode graph, padded": (DECODE_GRAPH, "mla_decode_bsz1_nonzero_prefix", {}),
    "breakable prefill graph": (SPLIT_OP, EXTEND, {"breakable": True}),
    "breakable prefill graph, padded": (
        SPLIT_OP,
        RAGGED,
        {"breakable": True, "static_num_tokens": 32},
    ),
    "piecewise prefill graph": (SPLIT_OP, EXTEND, {"breakable": False}),
    "EAGLE verify": (VERIFY, "verify", {"topk": 1}),
    "EAGLE verify graph": (VERIFY_GRAPH, "verify", {"topk": 1}),
    "frozen-KV MTP verify": (VERIFY, "verify", {"topk": 1, "spec_kind": "frozen_kv_mtp"}),
    "EAGLE draft graph": (DRAFT_GRAPH, DECODE, {}),
    "NGRAM verify": (VERIFY, "verify", {"topk": 1, "spec_kind": "ngram"}),
    "NGRAM verify graph": (VERIFY_GRAPH, "verify", {"topk": 1, "spec_kind": "ngram"}),
    "DFLASH verify": (VERIFY, "verify", {"topk": 1, "spec_kind": "dflash"}),
    **{
        f"eager {case}, {layout}": (EAGER, case, {"loc_layout": layout})
        for case in (RAGGED, DECODE)
        for layout in ("interleaved_pages", "non_monotonic_extend")
    },
}


def upstream_case(name: str, backend: str) -> Any:
    """Upstream's case of that name; it has none for verify with its plain runners."""
    methods = importlib.import_module(METHODS)
    cases = {case.name: case for case in methods.make_mla_cases(backend)}
    if name != "verify":
        return cases[name]
    forward_mode = methods.ForwardMode.TARGET_VERIFY
    return replace(
        cases[RAGGED],
        name="mla_verify",
        forward_mode=forward_mode,
        prefix_lens=(5, 16, 31),
        extend_lens=(3, 3, 3),
    )


def use_fp8() -> None:
    """Let upstream's fixtures make an FP8 pool; most of its runners have no switch for it."""
    methods = importlib.import_module(METHODS)
    for function in (methods.build_mla_attention_fixture, methods.run_mla_attention_case):
        function.__kwdefaults__["fp8_kv_cache"] = True
    methods.run_mla_attention_case.__kwdefaults__["atol"] = FP8_TOLERANCE
    for module in MODULES:
        loaded: Any = importlib.import_module(module)
        if hasattr(loaded, "MLA_ATOL"):
            loaded.MLA_ATOL = FP8_TOLERANCE


def run(case: str, backend: str) -> dict[str, str]:
    """The outcome of one case; an error is known by its type and its first line."""
    import torch

    (module, function), name, arguments = CASES[case]
    call: Callable[..., None] = getattr(importlib.import_module(module), function)
    try:
        call(
            unittest.TestCase(),
            upstream_case(name, backend),
            dtype=torch.bfloat16,
            **DIMS,
            **arguments,
        )
        torch.cuda.synchronize()
    except unittest.SkipTest as skipped:
        return {"outcome": "skipped", "error": str(skipped)}
    except ImportError as lacking:
        return {"outcome": "skipped", "error": f"{type(lacking).__name__}: {lacking}"}
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return {"outcome": "failed", "error": f"{type(error).__name__}: {first}"}
    return {"outcome": "passed", "error": ""}


def context_is_broken() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return True
    return False


def import_modules() -> None:
    """All of them first: one states ranks that the cases of the others need as well."""
    for module in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def main(backend: str, kv: str, first: str) -> int:
    import_modules()
    if kv != "bfloat16":
        use_fp8()
    for case in list(CASES)[int(first) :]:
        print(json.dumps({"case": case}), flush=True)
        print(json.dumps(run(case, backend)), flush=True)
        if context_is_broken():
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
