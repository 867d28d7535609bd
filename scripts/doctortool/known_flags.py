"""The flags of a server that can be judged without sglang; what is not here is sglang's to tell."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NAME = "flashinfer_mla_compact"
BACKEND_FLAGS = (
    "--attention-backend",
    "--decode-attention-backend",
    "--prefill-attention-backend",
    "--speculative-draft-attention-backend",
)
_DSA = ("flashmla_sparse", "flashmla_kv", "flashmla_auto", "fa3", "trtllm")
# Flags and the values that every pinned release takes. None stands for a flag that is left out.
_CHOICES: dict[tuple[str, ...], tuple[str, ...]] = {
    **{(flag,): (NAME, "flashinfer", "triton") for flag in BACKEND_FLAGS},
    ("--kv-cache-dtype",): ("auto", "fp8_e4m3", "fp8_e5m2", "bf16", "bfloat16", "fp4_e2m1"),
    ("--dsa-prefill-backend", "--nsa-prefill-backend"): _DSA,
    ("--dsa-decode-backend", "--nsa-decode-backend"): _DSA,
    ("--cuda-graph-backend-prefill",): ("breakable", "disabled", "full"),
    ("--speculative-algorithm",): ("EAGLE", "EAGLE3", "NEXTN", "NGRAM"),
    ("--disaggregation-mode",): ("null", "prefill", "decode"),
    ("--tool-call-parser",): (
        "deepseekv3",
        "deepseekv31",
        "deepseekv32",
        "glm45",
        "glm47",
        "kimi_k2",
    ),
    ("--reasoning-parser",): ("deepseek-r1", "deepseek-v3", "glm45", "kimi_k2", "qwen3"),
    ("--log-level",): ("debug", "info", "warning", "error"),
    ("--schedule-policy",): ("fcfs", "lpm"),
    ("--disaggregation-transfer-backend",): ("mooncake", "nixl"),
}
_TEXTS = (
    ("--model-path", "--model"),
    ("--cuda-graph-config",),
    ("--host",),
    ("--api-key",),
    ("--served-model-name",),
    ("--tokenizer-path",),
    ("--chat-template",),
    ("--dist-init-addr",),
)
_INTEGERS = (
    ("--tp-size", "--tensor-parallel-size", "--tp"),
    ("--dp-size", "--data-parallel-size", "--dp"),
    ("--dcp-size", "--decode-context-parallel-size"),
    ("--attn-cp-size",),
    ("--page-size",),
    ("--max-total-tokens",),
    ("--speculative-eagle-topk",),
    ("--speculative-ngram-max-bfs-breadth",),
    ("--speculative-num-steps",),
    ("--speculative-num-draft-tokens",),
    ("--max-running-requests",),
    *((f"--{name}",) for name in ("port", "nnodes", "node-rank", "base-gpu-id", "random-seed")),
)
_FRACTIONS = ("--mem-fraction-static", "--schedule-conservativeness", "--watchdog-timeout")
_SWITCHES = (
    "--enable-unified-memory",
    "--enable-pdmux",
    "--enable-dp-attention",
    "--disable-prefill-cuda-graph",
    "--disable-cuda-graph",
    "--enable-piecewise-cuda-graph",
    "--trust-remote-code",
    "--enable-metrics",
    "--disable-radix-cache",
)
_UPPER_CASE = ("--speculative-algorithm",)  # newer releases take it in lower case, too
# A line of a --config file that needs no YAML to be read.
_PLAIN = re.compile(r"([a-z][a-z0-9-]*): +(?!(?:null|~)\b)([\w./+-]+) *")
_BOOLEAN = re.compile(r"true|false|yes|no|on|off", re.I)
# The last release with a flag, and the first with the newer ones, of those that are pinned.
_UNTIL = {
    "nsa-prefill-backend": (0, 5, 17),
    "nsa-decode-backend": (0, 5, 17),
    "enable-piecewise-cuda-graph": (0, 5, 9),
}
SINCE = (0, 5, 17)
_NEWER = re.compile(
    r"dsa-|dcp-size|decode-context|cuda-graph-(?:backend|config)|disable-prefill-cuda-graph"
    r"|enable-unified"
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The server arguments that are known here.

    `others` holds the rest, `passed_over` their flags, `given` all flags, `known` those known here.

    Raises `ValueError` with one sentence where one of them has no value or a wrong one.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (*_CHOICES, *_TEXTS):
        parser.add_argument(*names)
    for names in _INTEGERS:
        parser.add_argument(*names, type=int)
    for name in _FRACTIONS:
        parser.add_argument(name, type=float)
    for name in _SWITCHES:
        parser.add_argument(name, action="store_true")
    parser.set_defaults(kv_cache_dtype="auto", page_size=1, tp_size=1, dp_size=1, dcp_size=1)
    parser.set_defaults(attn_cp_size=1, speculative_ngram_max_bfs_breadth=10)
    stated = _with_config(list(arguments))
    try:
        options, others = parser.parse_known_args(stated)
    except argparse.ArgumentError as error:
        raise ValueError(f"the server arguments are not understood: {error}.") from None
    options.others = others
    options.given, options.passed_over = _flags(stated), _flags(others)
    options.known = list(parser._option_string_actions)
    return options


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
    texts = [
        key for key, value in pairs if _BOOLEAN.fullmatch(value) and f"--{key}" not in _SWITCHES
    ]
    if texts or len(pairs) < len(found):
        return arguments
    given = [[f"--{key}", *([value] * (value != "true"))] for key, value in pairs]
    stated = [part for flag in given if flag[1:] != ["false"] for part in flag]
    return [*stated, *arguments[:place], *arguments[place + 2 :]]


def unknown(options: argparse.Namespace, release: str) -> Iterator[str]:
    """What of the arguments sglang alone can judge; each a few words."""
    for flag in options.passed_over or options.others[:1]:
        if any(one.startswith(flag.replace("_", "-")) for one in options.known):
            yield f"{flag} may be short for another flag: write it in full"
        else:
            yield f"{flag} is read by sglang alone"
    numbers = numbers_of(release)
    for names, values in _CHOICES.items():
        value = getattr(options, names[0][2:].replace("-", "_"))
        if names == _UPPER_CASE and value and numbers >= SINCE:
            value = value.upper()
        if value not in (None, *values):
            yield f"{names[0]} {value} is read by sglang alone"
    for flag in dict.fromkeys(options.given):
        newer = _NEWER.match(flag[2:]) and numbers < SINCE
        if newer or numbers > _UNTIL.get(flag[2:], numbers):
            yield f"sglang {release} may have no {flag}"
    yield from _incomplete(options)


def _incomplete(options: argparse.Namespace) -> Iterator[str]:
    """What sglang completes, or judges several flags by, in ways of its own."""
    twice = options.cuda_graph_backend_prefill is not None
    if options.cuda_graph_config is not None and (twice or graph_of_prefill(options) is None):
        yield "--cuda-graph-config is read by sglang alone"
    if options.enable_dp_attention and options.tp_size % max(options.dp_size, 1):
        yield "--dp-size does not divide --tp-size"
    drafting = [
        options.speculative_num_steps,
        options.speculative_num_draft_tokens,
        options.speculative_eagle_topk,
    ]
    if drafting.count(None) in (1, 2) and (options.speculative_algorithm or "").upper() != "NGRAM":
        yield "sglang alone completes flags of speculative decoding: give all three, or none"


def graph_of_prefill(options: argparse.Namespace) -> str | None:
    """The prefill graph of --cuda-graph-config; None where that says more, or less."""
    try:
        config: Any = json.loads(options.cuda_graph_config)
        [backend] = config["prefill"].values()
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    choices = _CHOICES["--cuda-graph-backend-prefill",]
    alone = [*config] == ["prefill"] and [*config["prefill"]] == ["backend"]
    return backend if alone and backend in choices else None


def numbers_of(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:3])


def _flags(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]
