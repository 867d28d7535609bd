"""Inputs of one attention call at one point, and its result in float64."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from bench.loads import Load

NOPE, ROPE = 512, 64
WIDTH = NOPE + ROPE
PAGE = 64
SM_SCALE = 192**-0.5
CHECKED_REQUESTS = 3
FEWEST_LAYERS = 16


@dataclass(frozen=True)
class Spot:
    """Heads and load, "16:64x4096"; "16x4:64x4096" for a verify of 4 query tokens a request."""

    heads: int
    load: Load
    queries: int = 1

    @classmethod
    def parse(cls, text: str) -> Spot:
        """Read "16:64x4096" or "16x4:64x4096"; ValueError with one sentence for all else."""
        match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?:(.+)", text, re.ASCII)
        if not match:
            raise ValueError(f"{text!r} is not a point: write HEADS:BATCHxTOKENS.")
        return cls(int(match[1]), Load.parse(match[3]), int(match[2] or 1))

    def __str__(self) -> str:
        return f"{self.heads}{f'x{self.queries}' if self.queries > 1 else ''}:{self.load}"

    @property
    def active(self) -> int:
        """KV tokens attended to."""
        return self.load.batch * self.load.context


class Pools:
    """Many layers' rows as one tensor, in FP8 and, once asked for, in BF16.

    A layer is a window of `rows` rows. Windows overlap where there are more layers than copies,
    but the same slots are other rows in each.
    """

    def __init__(self, rows: int, copies: int, device: torch.device) -> None:
        self.rows, self.copies = rows, copies
        generator = torch.Generator(device).manual_seed(0)
        self.fp8 = torch.empty(rows * copies, 1, WIDTH, dtype=torch.float8_e4m3fn, device=device)
        one = torch.randn(rows, 1, WIDTH, device=device, generator=generator)
        for copy in range(copies):
            self.fp8[copy * rows : (copy + 1) * rows] = one.roll(copy, 0).to(self.fp8.dtype)

    @cached_property
    def bf16(self) -> torch.Tensor:
        wide = torch.empty(self.fp8.shape, dtype=torch.bfloat16, device=self.fp8.device)
        for copy in range(self.copies):
            window = slice(copy * self.rows, (copy + 1) * self.rows)
            wide[window] = self.fp8[window].to(torch.bfloat16)
        return wide

    def layer(self, whole: torch.Tensor, number: int, layers: int) -> torch.Tensor:
        """[rows, 1, 576] of layer `number` of `layers`; ValueError if all would be the same."""
        step = self.rows
        if layers > self.copies:
            step = (self.copies - 1) * self.rows // layers // PAGE * PAGE
        if not step:
            raise ValueError(
                f"{self.copies} copies of {self.rows} rows have no {layers} windows of their own"
            )
        return whole[number * step : number * step + self.rows]


class Case:
    """Queries, slots and output of one point; slots are drawn at random, none twice."""

    def __init__(self, spot: Spot, pools: Pools) -> None:
        device = pools.fp8.device
        self.spot, self.pools, self.device = spot, pools, device
        generator = torch.Generator(device).manual_seed(1)
        batch, context = spot.load.batch, spot.load.context
        tokens = batch * spot.queries
        query = torch.randn(tokens, spot.heads, WIDTH, device=device, generator=generator)
        self.query = query.to(torch.bfloat16)
        order = torch.randperm(pools.rows, device=device, generator=generator)
        self.slots = order[: spot.active].to(torch.int32)
        self.pages = torch.randperm(pools.rows // PAGE, device=device, generator=generator)
        self.kv_indptr = torch.arange(batch + 1, device=device, dtype=torch.int32) * context
        self.qo_indptr = torch.arange(batch + 1, device=device, dtype=torch.int32) * spot.queries
        self.lengths = torch.full((batch,), context, device=device, dtype=torch.int32)
        self.out = torch.empty(tokens, spot.heads, NOPE, device=device, dtype=torch.bfloat16)

    def block_table(self) -> torch.Tensor:
        """[batch, pages] int32 for kernels that want pages of 64 tokens."""
        wanted = math.ceil(self.spot.load.context / PAGE)
        if wanted * self.spot.load.batch > self.pages.shape[0]:
            raise ValueError("the pool has too few pages of 64 for this load")
        chosen = self.pages[: wanted * self.spot.load.batch]
        return chosen.view(self.spot.load.batch, wanted).to(torch.int32)

    def paged_slots(self) -> torch.Tensor:
        """The slots that `block_table` names, in the order of `slots`."""
        inner = torch.arange(PAGE, device=self.device)
        every = self.block_table().long()[:, :, None] * PAGE + inner
        return every.flatten(1)[:, : self.spot.load.context].flatten()

    def error(self, out: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> float:
        """Relative root-mean-square error against float64, over some requests.

        Args:
            out: attention over `slots` of a layer.
            rows: that layer's, in FP8.
        """
        batch, context, queries = self.spot.load.batch, self.spot.load.context, self.spot.queries
        requests = random.Random(0).sample(range(batch), min(batch, CHECKED_REQUESTS))
        chosen = [request * queries + last for request in requests for last in range(queries)]
        ideal = []
        for token in chosen:
            request, place = divmod(token, queries)
            seen = request * context, (request + 1) * context - queries + 1 + place
            keys = rows[slots[slice(*seen)].long(), 0].double()
            weights = (self.query[token].double() @ keys.T * SM_SCALE).softmax(-1)
            ideal.append(weights @ keys[:, :NOPE])
        right = torch.stack(ideal)
        return float((out[chosen].double() - right).norm() / right.norm())


def layers_for(bytes_a_layer: int, l2_bytes: int) -> int:
    """Layers in turn that together read four times the L2."""
    return max(FEWEST_LAYERS, math.ceil(4 * l2_bytes / bytes_a_layer))


@dataclass
class Timed:
    """A captured strategy: replay one graph of `layers` calls.

    Attributes:
        call: what was captured. A graph holds addresses only: this keeps the tensors.
        out: what the last call returned, written again by each replay.
    """

    graph: torch.cuda.CUDAGraph
    layers: int
    call: Callable[[int], torch.Tensor]
    out: torch.Tensor

    def microseconds(self) -> float:
        """Time a layer of one replay, launched while another keeps the device busy."""
        self.graph.replay()
        return timed(self.graph.replay) / self.layers


def timed(work: Callable[[], object]) -> float:
    """Microseconds of what `work` submits to the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def capture(call: Callable[[int], torch.Tensor], layers: int) -> Timed:
    """Record `call(0) .. call(layers - 1)`, which must have run once, and replay it twice."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(layers):
            out = call(number)
    timed = Timed(graph, layers, call, out)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    return timed
