"""Checkpoints whose drafts are known: the bench model as a target, and drafts of one layer.

The draft, too, is an exact lookup. From a token it looks up the row of the token's successor, and
that row holds the code of the token to draft. A quarter of the rows are made to mislead, so that
verify has drafts to refuse. The codes stand in the target's embedding, which a draft shares, in
elements where no query of the target looks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file

from bench.lookup import CYCLE, advance, answer
from bench.model import CODE, IDENTITY, SCRATCH, STATE, SUCCESSOR, Weights, config
from tests.gpu.engine_calls import Ask
from tests.gpu.lookups import SHAPE, TASK

STEPS = 3
DRAFTED = slice(SCRATCH.start, SCRATCH.start + CODE)
MISLEADING = frozenset(Random("drafts").sample(range(CYCLE), CYCLE // 4))
EXPERTS, EXPERT_SIZE = 8, 256

# Where EAGLE drafts for Mistral Large 3, whose layers are DeepSeek's, have a layer's tensors.
EAGLE_NAMES = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.kv_a_proj_with_mqa": "attention.wkv_a_with_mqa",
    "self_attn.kv_a_layernorm": "attention.kv_a_norm",
    "self_attn.kv_b_proj": "attention.wkv_b",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


def drafted(row: int) -> int:
    """The token that a draft says where it looks up the row of token `row`."""
    return advance(row, TASK.layers - 1 + (row % CYCLE in MISLEADING))


def accepted(asked: Ask) -> list[int]:
    """How many drafts each verify of a request accepts; the first token comes from prefill."""
    tokens = answer(TASK, asked.prompt[-1], asked.tokens + STEPS)
    counts: list[int] = []
    while (done := 1 + len(counts) + sum(counts)) < asked.tokens:
        wrong = [advance(token, 1) % CYCLE in MISLEADING for token in tokens[done - 1 :][:STEPS]]
        counts.append(wrong.index(True) if True in wrong else STEPS)
    return counts


def changed_copy(
    model: Path, to: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """A checkpoint that differs in one tensor, and shares all other files."""
    to.mkdir()
    for file in model.iterdir():
        os.link(file, to / file.name)
    index = json.loads((to / "model.safetensors.index.json").read_text())
    shard = to / index["weight_map"][name]
    tensors = load_file(shard)
    tensors[name] = change(tensors[name])
    shard.unlink()  # the link: the file stays that of the other folder
    save_file(tensors, shard, {"format": "pt"})


def make_target(model: Path, to: Path) -> None:
    changed_copy(model, to, "model.embed_tokens.weight", with_drafted)


def with_drafted(embedding: torch.Tensor) -> torch.Tensor:
    embedding = embedding.clone()
    embedding[:, DRAFTED] = embedding[[drafted(token) for token in range(len(embedding))], IDENTITY]
    return embedding


def make_eagle(to: Path) -> None:
    """An EAGLE draft with a dense layer."""
    tensors = {
        f"layers.0.{EAGLE_NAMES[name]}.weight": tensor for name, tensor in draft_layer().items()
    }
    tensors |= {"eagle_linear.weight": combination(), "norm.weight": torch.ones(SHAPE.hidden)}
    write_draft(to, tensors, "MistralLarge3ForCausalLMEagle", {"first_k_dense_replace": 1})


def make_mtp(to: Path) -> None:
    """DeepSeek's NextN layer; its experts, which it always has, add nothing."""
    norms = {name: torch.ones(SHAPE.hidden) for name in ("enorm", "hnorm", "shared_head.norm")}
    attention = {name: of for name, of in draft_layer().items() if not name.startswith("mlp")}
    tensors = {**norms, "eh_proj": combination(), **attention, **experts()}
    more: dict[str, object] = {"num_nextn_predict_layers": 1, "moe_intermediate_size": EXPERT_SIZE}
    named = {f"model.layers.0.{name}.weight": tensor for name, tensor in tensors.items()}
    write_draft(to, named, "DeepseekV3ForCausalLM", more)


def experts() -> dict[str, torch.Tensor]:
    owners = [f"mlp.experts.{number}" for number in range(EXPERTS)] + ["mlp.shared_experts"]
    sizes = {"gate_proj": (EXPERT_SIZE, SHAPE.hidden), "up_proj": (EXPERT_SIZE, SHAPE.hidden)}
    sizes["down_proj"] = (SHAPE.hidden, EXPERT_SIZE)
    zeros = {f"{of}.{name}": torch.zeros(size) for of in owners for name, size in sizes.items()}
    return {"mlp.gate": torch.zeros(EXPERTS, SHAPE.hidden), **zeros}


def draft_layer() -> dict[str, torch.Tensor]:
    """One of the bench model's layers, its tensors without prefix and ".weight"."""
    tensors = Weights(replace(SHAPE, layers=1), torch.device("cpu"), seed=2).layer(0)
    prefix = "model.layers.0."
    return {name.removeprefix(prefix).removesuffix(".weight"): of for name, of in tensors.items()}


def combination() -> torch.Tensor:
    """[hidden, 2 * hidden]: embedding and last hidden state, which goes unused, to the layer."""
    weight = torch.zeros(SHAPE.hidden, 2 * SHAPE.hidden)
    rest = slice(SCRATCH.start, SHAPE.hidden)
    parts = [(IDENTITY, IDENTITY), (SUCCESSOR, DRAFTED), (STATE, SUCCESSOR), (rest, rest)]
    for to, source in parts:
        weight[to, source].fill_diagonal_(1.0)
    return weight


def write_draft(
    to: Path, tensors: dict[str, torch.Tensor], architecture: str, more: dict[str, object]
) -> None:
    to.mkdir()
    host = {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}
    save_file(host, to / "model.safetensors", {"format": "pt"})
    described = {**config(replace(SHAPE, layers=1)), "architectures": [architecture], **more}
    (to / "config.json").write_text(json.dumps(described, indent=1))
