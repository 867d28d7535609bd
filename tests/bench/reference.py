"""A plain MLA decoder for checkpoints of `bench.model`: expanded heads, FP8 rows, no cache.

It shares nothing with the server's code, so it says what the checkpoint itself computes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

HEAD, ROPE, LATENT = 128, 64, 512

Corrupt = Callable[[int, Tensor], Tensor]


def load(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return {name: tensor.float() for name, tensor in tensors.items()}


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _rope(x: Tensor) -> Tensor:
    """Rotate interleaved pairs of [tokens, heads, 64] by position, as DeepSeek-V2 does."""
    frequency = 10000.0 ** (-torch.arange(0, ROPE, 2) / ROPE)
    angle = torch.arange(len(x))[:, None, None] * frequency
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).flatten(-2)


def _attend(x: Tensor, w: dict[str, Tensor], number: int, corrupt: Corrupt) -> Tensor:
    tokens = len(x)
    q = (x @ w["self_attn.q_proj.weight"].T).view(tokens, -1, HEAD + ROPE)
    down = x @ w["self_attn.kv_a_proj_with_mqa.weight"].T
    latent = _norm(down[:, :LATENT], w["self_attn.kv_a_layernorm.weight"])
    rope = _rope(down[:, None, LATENT:])[:, 0]
    rows = torch.cat([latent, rope], -1).to(torch.float8_e4m3fn).float()
    rows = corrupt(number, rows)
    up = (rows[:, :LATENT] @ w["self_attn.kv_b_proj.weight"].T).view(tokens, -1, 2 * HEAD)
    q = torch.cat([q[..., :HEAD], _rope(q[..., HEAD:])], -1)
    k = torch.cat([up[..., :HEAD], rows[:, None, LATENT:].expand(-1, up.shape[1], -1)], -1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (HEAD + ROPE) ** -0.5
    scores += torch.full((tokens, tokens), -torch.inf).triu(1)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), up[..., HEAD:])
    return out.flatten(1) @ w["self_attn.o_proj.weight"].T


def _layer(x: Tensor, w: dict[str, Tensor], number: int, corrupt: Corrupt) -> Tensor:
    x = x + _attend(_norm(x, w["input_layernorm.weight"]), w, number, corrupt)
    y = _norm(x, w["post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(y @ w["mlp.gate_proj.weight"].T)
    return x + (gate * (y @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


def generate(
    tensors: dict[str, Tensor],
    layers: int,
    prompt: list[int],
    tokens: int,
    corrupt: Corrupt = lambda number, rows: rows,
) -> list[int]:
    """Greedy tokens; `corrupt(layer, rows)` may change the FP8 rows that attention reads."""
    text = list(prompt)
    for _ in range(tokens):
        x = tensors["model.embed_tokens.weight"][text]
        for number in range(layers):
            prefix = f"model.layers.{number}."
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            x = _layer(x, own, number, corrupt)
        logits = _norm(x[-1], tensors["model.norm.weight"]) @ tensors["lm_head.weight"].T
        text.append(int(logits.argmax()))
    return text[len(prompt) :]
