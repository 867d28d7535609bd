"""Make an EAGLE draft of one layer for models of `bench.model`, whatever their number of layers.

The layer is one of the bench model's own. What it says is of no use to a benchmark, where sglang is
told how many drafts to accept; tests give the target an embedding by which it drafts well.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.model import CODE, IDENTITY, SCRATCH, STATE, SUCCESSOR, Shape, Weights, config

SHAPE = Shape(layers=1)
DRAFTED = slice(SCRATCH.start, SCRATCH.start + CODE)  # of the target's embedding

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


def make_eagle(to: Path) -> None:
    """An EAGLE draft with a dense layer."""
    tensors = {
        f"layers.0.{EAGLE_NAMES[name]}.weight": tensor for name, tensor in draft_layer().items()
    }
    tensors |= {"eagle_linear.weight": combination(), "norm.weight": torch.ones(SHAPE.hidden)}
    write_draft(to, tensors, "MistralLarge3ForCausalLMEagle", {"first_k_dense_replace": 1})


def draft_layer() -> dict[str, torch.Tensor]:
    """One of the bench model's layers, its tensors without prefix and ".weight"."""
    tensors = Weights(SHAPE, torch.device("cpu"), seed=2).layer(0)
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
    to.mkdir(parents=True, exist_ok=True)
    host = {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}
    save_file(host, to / "model.safetensors", {"format": "pt"})
    described = {**config(SHAPE), "architectures": [architecture], **more}
    (to / "config.json").write_text(json.dumps(described, indent=1))  # last: it is whole


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.draft", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the draft, DIR-draft for DIR")
    make_eagle(parser.parse_args(arguments).folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
