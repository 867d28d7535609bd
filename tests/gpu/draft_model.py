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
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file

from bench.draft import DRAFTED, combination, draft_layer, write_draft
from bench.lookup import CYCLE, advance, answer
from bench.model import IDENTITY
from bench.setups import DRAFT_STEPS as STEPS
from tests.gpu.engine_calls import Ask
from tests.gpu.lookups import SHAPE, TASK

MISLEADING = frozenset(Random("drafts").sample(range(CYCLE), CYCLE // 4))
EXPERTS, EXPERT_SIZE = 8, 256


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
