"""Command lines of servers: seven models in five styles, and what operators met."""

from __future__ import annotations

import json
from pathlib import Path

NAME = "flashinfer_mla_compact"
FOLDER = Path(__file__).parent / "models"
DENSE = ("deepseek-r1", "kimi-k2.5", "glm-4.7-flash")
MODELS = (*DENSE, "glm-5", "glm-5.3-flash", "deepseek-v4", "qwen3")
CONFIG = f"attention-backend: {NAME}\nkv-cache-dtype: fp8_e4m3\nenable-pdmux: true\n"
DRAFTS = "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
STYLES = {
    "plain": f"--attention-backend {NAME} --kv-cache-dtype fp8_e4m3",
    "split": f"--prefill-attention-backend={NAME} --decode-attention-backend={NAME} "
    "--kv-cache-dtype=fp8_e5m2 --speculative-algorithm=ngram",
    "short": f"--attention-b {NAME} --kv-cache-d fp8_e4m3 --speculative-algo EAGLE {DRAFTS}",
    "config": "--config CONFIG",
    "json": f"--attention-backend {NAME} --cuda-graph-config GRAPH",
}
GRAPH = '{"prefill":{"backend":"disabled"}}'


def command_lines(folder: Path) -> dict[str, list[str]]:
    config = folder / "server.yaml"
    config.write_text(CONFIG)
    return {
        f"{model} {style}": [
            *("--model-path", str(FOLDER / model)),
            *(text.replace("CONFIG", str(config)).replace("GRAPH", GRAPH).split()),
        ]
        for model in MODELS
        for style, text in STYLES.items()
    }


# Further arguments: the model, a card, what is given, the first mark and some of its words.
FP8 = f"--attention-backend {NAME} --kv-cache-dtype fp8_e4m3"
OWN_DRAFT = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
OWN_DRAFT += "--speculative-num-draft-tokens 4 --speculative-draft-model-path NARROW"
ROLE = "--disaggregation-mode prefill"
SPLIT = "--tp 8 --attn-cp-size 8 --enable-prefill-cp --cp-strategy interleave"
SPLIT += " --enable-dsa-cache-layer-split --cuda-graph-backend-prefill disabled"
RAW = "--dsa-prefill-backend trtllm --dsa-decode-backend trtllm"
MORE = {
    "a file names the model": ("", "9.0", "--config WHOLE", "fix", "PD multiplexing"),
    "short for pdmux": ("deepseek-r1", "9.0", f"{FP8} --enable-pdm", "fix", "PD multiplexing"),
    "short for dcp": ("deepseek-r1", "9.0", f"{FP8} --tp 8 --dcp-s 2", "fix", "size 2"),
    "auto, quantised": ("glm-5", "12.0", f"--attention-backend {NAME}", "fix", "656 bytes"),
    "auto, raw": ("glm-5", "10.0", f"--attention-backend {NAME}", "fix", "breakable"),
    "auto, uncast": ("glm-5", "9.0", f"--attention-backend {NAME}", "fix", "needs no cast"),
    "stated": ("stated", "9.0", f"--attention-backend {NAME}", "ok", "nothing"),
    "prefill role": (
        "glm-5",
        "9.0",
        f"{FP8} --dsa-decode-backend trtllm {ROLE}",
        "fix",
        "656 bytes",
    ),
    "raw prefill role": (
        "glm-5",
        "9.0",
        f"{FP8} {RAW} {ROLE} --cuda-graph-backend-prefill disabled",
        "ok",
        "nothing",
    ),
    "layer split": ("glm-5", "9.0", f"{FP8} {RAW} {ROLE} {SPLIT}", "fix", "LayerSplit"),
    "BF16 asked for": (
        "glm-5",
        "9.0",
        f"--attention-backend {NAME} --kv-cache-dtype bfloat16",
        "note",
        "needs no cast",
    ),
    "BF16 and DCP": (
        "deepseek-r1",
        "9.0",
        f"--attention-backend {NAME} --kv-cache-dtype bfloat16 --tp 8 --dcp-size 8",
        "note",
        "needs no cast",
    ),
    "deterministic": (
        "deepseek-r1",
        "9.0",
        f"{FP8} --enable-deterministic-inference",
        "fix",
        "deterministic inference",
    ),
    "a draft's own rows": (
        "deepseek-r1",
        "9.0",
        f"{FP8} {OWN_DRAFT}",
        "fix",
        "of the draft, kv_lora",
    ),
    "a draft that is not cast": (
        "deepseek-r1",
        "9.0",
        f"{FP8} {OWN_DRAFT} --speculative-draft-kv-cache-dtype bf16",
        "ok",
        "nothing",
    ),
    "a draft alone": (
        "deepseek-r1",
        "9.0",
        f"--speculative-draft-attention-backend {NAME} --kv-cache-dtype fp8_e4m3 {OWN_DRAFT}",
        "fix",
        "kv_lora_rank + qk_rope_head_dim is 256",
    ),
    "stated next to the config": (
        "modelopt",
        "9.0",
        f"--attention-backend {NAME}",
        "ok",
        "nothing",
    ),
    "a flag that is none": ("deepseek-r1", "9.0", f"{FP8} --no-such-flag", "fix", "unrecognized"),
    "a graph that is named, and switched off": (
        "glm-5",
        "9.0",
        f"{FP8} {RAW} --cuda-graph-backend-prefill full --disable-prefill-cuda-graph",
        "fix",
        "full prefill graph",
    ),
    "a refusal without a word": (
        "deepseek-r1",
        "9.0",
        f"{FP8} --tp 8 --dp 3 --enable-dp-attention",
        "fix",
        "assert",
    ),
    "no flag": ("deepseek-r1", "9.0", "--kv-cache-dtype fp8_e4m3", "fix", "no attention-backend"),
}
UNJUDGED = {
    "no folder": f"--model-path zai-org/GLM-5 {FP8}",
    "a draft that is no folder": f"--model-path {FOLDER}/deepseek-r1 {FP8} --speculative-algorithm"
    f" EAGLE {DRAFTS} --speculative-draft-model-path zai-org/draft",
    "what sglang fails at": f"--model-path {FOLDER}/deepseek-r1 {FP8} --speculative-algorithm EAGLE"
    " --speculative-num-steps 3",
    "broken": f"--model-path BROKEN {FP8}",
}


def more_runs(folder: Path) -> dict[str, list[str]]:
    made = more_models(folder)
    whole = folder / "whole.yaml"
    whole.write_text(f"model-path: {FOLDER}/deepseek-r1\n{CONFIG}")
    paths = {model: str(FOLDER / model) for model in MODELS} | made
    more = {
        name: [*(["--model-path", paths[model]] if model else []), *text.split()]
        for name, (model, _, text, *_) in MORE.items()
    }
    more |= {name: text.split() for name, text in UNJUDGED.items()}
    words = {"WHOLE": str(whole), "BROKEN": made["broken"], "NARROW": made["narrow"]}
    return {name: [words.get(part, part) for part in line] for name, line in more.items()}


def more_models(folder: Path) -> dict[str, str]:
    """Folders of checkpoints: one that is broken, one of a small latent, two that state a dtype."""
    config = json.loads((FOLDER / "deepseek-r1" / "config.json").read_text())
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    stated = {**config["quantization_config"], "kv_cache_quant_algo": "FP8"}
    quantised = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    texts = {
        "broken": {"config.json": "{"},
        "narrow": {"config.json": json.dumps(config | {"kv_lora_rank": 256})},
        "stated": {"config.json": json.dumps(config | {"quantization_config": stated})},
        "modelopt": {
            "config.json": json.dumps(plain),
            "hf_quant_config.json": json.dumps(quantised),
        },
    }
    for model, files in texts.items():
        (folder / model).mkdir()
        for name, text in files.items():
            (folder / model / name).write_text(text)
    return {model: str(folder / model) for model in texts}
