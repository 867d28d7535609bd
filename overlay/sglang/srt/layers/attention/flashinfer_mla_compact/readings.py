"""The readings of one backend: made before the server is ready, chosen from at each plan."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from . import policy
from .direct import attend, configs
from .direct.reading import Direct
from .direct.workspace import Shape, Workspace, partial_dtype, shape_of
from .gather.reading import Gathered
from .gather.rows import SlotTable
from .support import HEAD_DIM, NAME
from .upstream.settings import get_buffer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Needs:
    """What the steps of a backend may ask for.

    Attributes:
        pool_rows: rows of a layer of the pool.
        pool_dtype, dtype: of the pool, and of queries and output.
        device: where the pool lives.
        heads: query heads of this rank.
        sm_scale: softmax scale.
        requests: most requests of a step.
        verified: query tokens of each request of a verify; 0 where nothing is verified.
        new_tokens: query tokens that an extend is expected to have at the most; 0 without extends.
    """

    pool_rows: int
    pool_dtype: torch.dtype
    dtype: torch.dtype
    device: torch.device
    heads: int
    sm_scale: float
    requests: int
    verified: int
    new_tokens: int


class Readings:
    """Which reading a step takes.

    Captured steps of one kind read in one way, whatever the load, as a replay can't be called
    off. Where the compact buffer may be too small for them, they read directly. An eager extend
    gathers if it surely fits, unless it has few tokens, as that of a draft.

    Attributes:
        gathered: through the compact buffer.
        decode: of decode steps.
        decode_strategy, verify_strategy: the names of their readings, and why.

    Args:
        needs: of the steps.
        settings: the operator's choices.
        table: scratch of the gathered reading.

    Raises:
        ValueError: nothing can be built that would read every step.
    """

    def __init__(self, needs: Needs, settings: policy.Settings, table: SlotTable) -> None:
        self._needs = needs
        self._settings = settings
        self._means = _means(needs)
        self.decode_strategy = self._strategy(1)
        self.verify_strategy = self._strategy(max(1, needs.verified))
        captured = {self.decode_strategy[0], *([self.verify_strategy[0]] * bool(needs.verified))}
        rows = policy.capacity_rows(needs.pool_rows, settings, gathers=Gathered.name in captured)
        shapes: dict[int | None, Shape] = {}
        if Direct.name in captured or rows < needs.pool_rows:
            shapes = {kind: _shape(needs, kind) for kind in self._kinds()}
        for kind, shape in shapes.items():  # before anything is held: what fails would stay
            self._compile(shape, self._most(kind))
        self.gathered = Gathered(compact_buffer(rows, needs.dtype, needs.device), table)
        if needs.device.type == "cuda":  # extends may be the first to gather, in service
            self.gathered.warm_up(needs.pool_dtype)
        self._scratch_bytes = max(
            (shape.scratch_bytes(self._most(kind)) for kind, shape in shapes.items()), default=0
        )
        self._directs = {kind: self._make(shapes[kind], self._most(kind)) for kind in shapes}
        self.decode: Gathered | Direct = self.gathered
        if self.decode_strategy[0] == Direct.name:
            self.decode = self._directs[1]

    def of_verify(self, tokens: int) -> Gathered | Direct:
        """The reading of a verify of `tokens` query tokens a request."""
        if self._strategy(tokens)[0] == Gathered.name:
            return self.gathered
        if tokens not in self._directs:  # adaptive speculation captures graphs for several
            self._directs[tokens] = self._late(tokens, self._needs.requests * tokens)
        return self._directs[tokens]

    def of_captured_extend(self) -> Gathered | Direct:
        """The reading of captured extends, whose requests differ in their query tokens."""
        return self._directs[None] if self.gathered.bounded else self.gathered

    def of_extend(self, entries: int, tokens: int, requests: int) -> Gathered | Direct:
        """The reading of an eager extend of `entries` KV tokens and `tokens` query tokens."""
        rows = self._needs.heads * -(-tokens // requests)
        few = policy.reads_few_directly(self._means, self._settings, rows)
        if self.gathered.fits(entries) and not (few and None in self._directs):
            return self.gathered
        if tokens > self._directs[None].workspace.max_tokens:
            self._directs[None] = self._late(None, tokens)
        return self._directs[None]

    @property
    def directs(self) -> list[Direct]:
        """All direct readings that were made."""
        return list(self._directs.values())

    def held(self) -> dict[str, list[torch.Tensor]]:
        """All that is held on the device, by its use; backends may share it."""
        rows = self.gathered.rows
        splits = [direct.workspace for direct in self.directs]
        return {
            "buffer": [self.gathered.buffer],
            "slots": [rows.slots, rows.count],
            "claims": [rows.table.row_of_slot, rows.table.stamps],
            "splits": [tensor for space in splits for tensor in (*space.tables, space.scratch)],
        }

    def _strategy(self, tokens: int) -> tuple[str, str]:
        return policy.strategy_of(self._means, self._settings, self._needs.heads * tokens)

    def _kinds(self) -> set[int | None]:
        """Query tokens of each request, None for requests that differ: of all steps."""
        needs = self._needs
        return {
            1,
            *([needs.verified] if needs.verified else []),
            *([None] * bool(needs.new_tokens)),
        }

    def _most(self, kind: int | None) -> int:
        """Most query tokens of a step of that kind."""
        needs = self._needs
        if kind is not None:
            return needs.requests * kind
        return max(needs.new_tokens, needs.requests * needs.verified)

    def _late(self, kind: int | None, most: int) -> Direct:
        shape = _shape(self._needs, kind)
        self._compile(shape, most)
        return self._make(shape, most)

    def _compile(self, shape: Shape, most: int) -> None:
        needs = self._needs
        if needs.device.type == "cuda":  # nothing is compiled elsewhere
            attend.warm_up(shape, most, needs.device, needs.dtype, needs.pool_dtype)

    def _make(self, shape: Shape, most: int) -> Direct:
        needs = self._needs
        scratch = shared_scratch(max(self._scratch_bytes, shape.scratch_bytes(most)), needs.device)
        return Direct(Workspace(shape, most, needs.device, scratch), needs.sm_scale)


def _shape(needs: Needs, kind: int | None) -> Shape:
    partial = partial_dtype(needs.pool_dtype)
    return shape_of(needs.heads, needs.device, q_per_request=kind, partial=partial)


def _means(needs: Needs) -> policy.Means:
    """With what can be built here: kernels that fail once are not tried again."""
    capability = torch.cuda.get_device_capability(needs.device)
    return policy.Means(
        needs.pool_rows, capability, "mma" in configs.KERNELS, "plain" in configs.KERNELS
    )


def make_readings(needs: Needs, settings: policy.Settings, table: SlotTable) -> Readings:
    """The readings of a backend, by the fastest kernels that this Triton can build.

    Raises:
        ValueError: as `Readings` does.
    """
    while True:
        try:
            readings = Readings(needs, settings, table)
        except attend.CompileError as error:
            configs.give_up(error.kernel, error)
        else:
            break
    for kernel, fault in configs.FAULTS.items():
        logger.warning(
            "%s: the %s kernel can't be built with this Triton (%s); decode by %s, verify by %s",
            NAME,
            kernel,
            fault,
            readings.decode_strategy[0],
            readings.verify_strategy[0],
        )
    return readings


def compact_buffer(capacity: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The process's one buffer of this shape, [capacity, 1, 576].

    Layers, graph batch sizes, wrappers and draft steps share it: each gathers right before its
    attention, on one stream.
    """

    def allocate() -> torch.Tensor:
        return torch.zeros((capacity, 1, HEAD_DIM), dtype=dtype, device=device)

    return get_buffer(f"{NAME}_{capacity}_{dtype}", allocate)


def shared_scratch(size: int, device: torch.device) -> torch.Tensor:
    """The process's one scratch of `size` bytes, for partial results, shared as the buffer is."""

    def allocate() -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=device)

    return get_buffer(f"{NAME}_splits_{size}", allocate)
