"""Make a DeepSeek-V2-shaped checkpoint whose greedy tokens are decided by attention alone.

Random weights would not do: with small ones attention hardly moves the logits, and a wrong gather
goes unseen; with large ones rounding alone changes tokens. Here every attention head is an exact
lookup. A token has a code of 256 signs. Its cached row holds its own code (the key) and that of its
successor (the value); a layer's query is the code that the state names. The signs survive FP8
unchanged, the best score leads by tens of nats, and the state ends as the code of the next token
(see `lookup`). Each layer stores the row under its own permutation and signs, so a row of another
layer is as wrong as a row of another token. MLPs are random and write where no query looks.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.lookup import CYCLE, TASK_FILE, Task

CODE = 256
LATENT = 2 * CODE
HEAD = 128
ROPE = 64

# Parts of the residual stream, in elements.
IDENTITY = slice(0, CODE)
SUCCESSOR = slice(CODE, 2 * CODE)
STATE = slice(2 * CODE, 3 * CODE)
SCRATCH = slice(3 * CODE, None)

# The score of a match is QUERY_GAIN * 128 / sqrt(192), 74 nats; the best of 65,536 random codes
# has about 0.4 of that, so the match gets all the weight.
QUERY_GAIN = 8.0
ROPE_GAIN = 1.5  # moves scores by a few nats: rope bytes take part but do not decide
MLP_OUTPUT = 0.05  # standard deviation of what an MLP adds to the scratch elements


@dataclass(frozen=True)
class Shape:
    """Sizes of the checkpoint; `heads` * 128 must not pass `hidden`, and `heads` is even."""

    layers: int = 78
    heads: int = 16
    hidden: int = 2048
    mlp: int = 4096
    vocabulary: int = 320 * CYCLE

    @property
    def task(self) -> Task:
        return Task(self.layers, self.vocabulary, self.layers // 2)


def config(shape: Shape) -> dict[str, object]:
    """`config.json` of a dense DeepSeek-V2 in BF16."""
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "moe_intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "first_k_dense_replace": shape.layers,
        "moe_layer_freq": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": LATENT,
        "q_lora_rank": None,
        "qk_nope_head_dim": HEAD,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": HEAD,
        "max_position_embeddings": 131072,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }


class Weights:
    """Draws the checkpoint's tensors, layer by layer, on one device from one seed."""

    def __init__(self, shape: Shape, device: torch.device, seed: int) -> None:
        self.shape = shape
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device
        self.codes = self._signs(shape.vocabulary, CODE)

    def _normal(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self._generator, device=self._device)

    def _signs(self, *size: int) -> torch.Tensor:
        bits = torch.randint(0, 2, size, generator=self._generator, device=self._device)
        return bits.float() * 2 - 1

    def _zeros(self, *size: int) -> torch.Tensor:
        return torch.zeros(size, device=self._device)

    def ends(self) -> dict[str, torch.Tensor]:
        """Embedding, last norm and output head."""
        tokens = torch.arange(self.shape.vocabulary, device=self._device)
        place = tokens % CYCLE
        successors = self.codes[tokens - place + (place + 1) % CYCLE]
        scratch = self._normal(self.shape.vocabulary, self.shape.hidden - 3 * CODE)
        embedding = torch.cat([self.codes, successors, self.codes, scratch], dim=1)
        head = self._zeros(self.shape.vocabulary, self.shape.hidden)
        head[:, STATE] = self.codes
        ones = torch.ones(self.shape.hidden, device=self._device)
        return {
            "model.embed_tokens.weight": embedding,
            "model.norm.weight": ones,
            "lm_head.weight": head,
        }

    def layer(self, number: int) -> dict[str, torch.Tensor]:
        """All tensors of one layer, named as in a DeepSeek-V2 checkpoint."""
        hidden = torch.ones(self.shape.hidden, device=self._device)
        tensors = {
            "input_layernorm.weight": hidden,
            "post_attention_layernorm.weight": hidden.clone(),
            "self_attn.kv_a_layernorm.weight": torch.ones(LATENT, device=self._device),
            "self_attn.q_proj.weight": self._queries(),
            "self_attn.o_proj.weight": self._output(),
            **self._latent(),
            **self._mlp(),
        }
        return {f"model.layers.{number}.{name}": tensor for name, tensor in tensors.items()}

    def _queries(self) -> torch.Tensor:
        """Even heads ask with the first half of the state's code, odd heads with the second."""
        shape = self.shape
        weight = self._zeros(shape.heads, HEAD + ROPE, shape.hidden)
        scratch = shape.hidden - SCRATCH.start
        for head in range(shape.heads):
            start = STATE.start + head % 2 * HEAD
            weight[head, :HEAD, start : start + HEAD].fill_diagonal_(QUERY_GAIN)
            weight[head, HEAD:, SCRATCH] = self._normal(ROPE, scratch) * ROPE_GAIN / scratch**0.5
        return weight.flatten(0, 1)

    def _latent(self) -> dict[str, torch.Tensor]:
        """Identity and successor as the cached row, shuffled, and their way back in `kv_b_proj`."""
        shape = self.shape
        order = torch.randperm(LATENT, generator=self._generator, device=self._device)
        signs = self._signs(LATENT, 1)
        shuffle = torch.eye(LATENT, device=self._device)[order] * signs
        down = self._zeros(LATENT + ROPE, shape.hidden)
        down[:LATENT, :LATENT] = shuffle
        scratch = shape.hidden - SCRATCH.start
        down[LATENT:, SCRATCH] = self._normal(ROPE, scratch) / scratch**0.5
        up = self._zeros(shape.heads, 2 * HEAD, LATENT)
        for head in range(shape.heads):
            half = head % 2 * HEAD
            identity = slice(half, half + HEAD)
            successor = slice(CODE + half, CODE + half + HEAD)
            up[head, :HEAD, identity].fill_diagonal_(1.0)
            # The state is the matched row's identity: subtracting that leaves the successor.
            up[head, HEAD:, identity].fill_diagonal_(-1.0)
            up[head, HEAD:, successor].fill_diagonal_(1.0)
        return {
            "self_attn.kv_a_proj_with_mqa.weight": down,
            "self_attn.kv_b_proj.weight": up.flatten(0, 1) @ shuffle.T,
        }

    def _output(self) -> torch.Tensor:
        """The mean over the heads of a half, added to the state."""
        weight = self._zeros(self.shape.hidden, self.shape.heads * HEAD)
        for head in range(self.shape.heads):
            row = STATE.start + head % 2 * HEAD
            block = weight[row : row + HEAD, head * HEAD : (head + 1) * HEAD]
            block.fill_diagonal_(2.0 / self.shape.heads)
        return weight

    def _mlp(self) -> dict[str, torch.Tensor]:
        shape = self.shape
        down = self._normal(shape.hidden, shape.mlp) * (MLP_OUTPUT / (0.6 * shape.mlp**0.5))
        down[: SCRATCH.start] = 0
        return {
            "mlp.gate_proj.weight": self._normal(shape.mlp, shape.hidden) / shape.hidden**0.5,
            "mlp.up_proj.weight": self._normal(shape.mlp, shape.hidden) / shape.hidden**0.5,
            "mlp.down_proj.weight": down,
        }


def write(shape: Shape, folder: Path, seed: int = 1, device: str = "cpu") -> None:
    """Write config, weights (one file a layer) and `lookup.json`, which says how to ask."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = Weights(shape, torch.device(device), seed)
    files: dict[str, str] = {}
    with ThreadPoolExecutor(4) as pool:
        writes = []
        for number in range(-1, shape.layers):
            tensors = weights.ends() if number < 0 else weights.layer(number)
            name = f"model-{number + 1:03d}.safetensors"
            host = {key: value.bfloat16().cpu().contiguous() for key, value in tensors.items()}
            files |= dict.fromkeys(host, name)
            writes.append(pool.submit(save_file, host, folder / name, {"format": "pt"}))
            _report_progress(number + 1, shape.layers)
        for write_ in writes:
            write_.result()
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / TASK_FILE).write_text(json.dumps(asdict(shape.task)))
    (folder / "config.json").write_text(json.dumps(config(shape), indent=1))  # last: it is whole


def _report_progress(done: int, layers: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == layers else ""
        print(f"\rmodel: {done} of {layers} layers", end=end, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.model", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the checkpoint (6 GB)")
    parser.add_argument("--layers", type=int, default=78)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    write(Shape(layers=chosen.layers), chosen.folder, chosen.seed, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
