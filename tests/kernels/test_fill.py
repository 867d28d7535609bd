"""One launch writes new keys to the pool and fills the buffer: as a write and a gather in turn."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_mla_compact.fill import Fill
from sglang.srt.layers.attention.flashinfer_mla_compact.gather import gather_rows
from sglang.srt.layers.attention.flashinfer_mla_compact.rows import (
    CompactRows,
    NewRows,
    SlotTable,
)
from sglang.srt.layers.attention.flashinfer_mla_compact.write import NewKeys, top_code, write_rows
from triton.runtime import interpreter

from tests.kernels.test_gather import guarded, random_pool, same_bits

# The interpreter itself does what numpy is about to forbid.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

POOL = 64
DTYPES = [
    (pool, model)
    for pool in (torch.float8_e4m3fn, torch.float8_e5m2)
    for model in (torch.bfloat16, torch.float16)
]


@dataclass
class Step:
    """Requests: slots of each, the last of which are those of its new tokens; more tokens pad."""

    slots: list[list[int]]
    new: list[int]
    padding: int = 0

    @property
    def named(self) -> torch.Tensor:
        return torch.tensor([slot for slots in self.slots for slot in slots])

    @property
    def written(self) -> torch.Tensor:
        own = [s for slots, n in zip(self.slots, self.new, strict=True) for s in slots[-n:]]
        return torch.tensor(own + [0] * self.padding)


ALONE = Step([[9, 4, 30, 31, 2, 63]], [2])
SHARED = Step([[9, 4, 17, 33], [9, 4, 40, 41, 42], [9, 5]], [1, 3, 1])
NESTED = Step([[9, 4, 40], [9, 4, 40, 41]], [1, 1])  # the second reads what the first one writes
FRESH = Step([[3, 1, 2], [50]], [3, 1])
LONG = Step([list(range(62, 5, -1)), [*range(62, 20, -1), 3]], [2, 1])  # many tiles a program
STEPS = (ALONE, SHARED, NESTED, FRESH, LONG)
PADDED = Step([[9, 4, 30], [9, 4, 31]], [1, 1], padding=3)


@dataclass
class Placed:
    """The rows of a step, its entries as FlashInfer finds them, and the rows of its tokens."""

    rows: CompactRows
    entries: torch.Tensor
    found: torch.Tensor


def placed(step: Step, written: torch.Tensor, capacity: int = POOL, reserved: int = -1) -> Placed:
    rows = CompactRows(capacity, SlotTable(POOL, torch.device("cpu")), programs=4)
    indices = step.named.int()
    total = torch.tensor([len(indices)], dtype=torch.int32)
    rows.claim(indices, total)
    rows.translate(indices, total)
    return Placed(rows, indices.long(), rows.find(written, reserved).rows)


def new_keys(
    step: Step, dtype: torch.dtype, model: torch.dtype, reserved: int = -1, width: int = 576
) -> NewKeys:
    pool, slots = random_pool(POOL, dtype, width), step.written
    keys = torch.randn(len(slots), 1, 576, generator=torch.Generator().manual_seed(7)) * 30
    nope, rope = keys.to(model).split([512, 64], dim=-1)
    return NewKeys(pool, slots, nope, rope, top_code(dtype, pool.device), reserved)


def fill(keys: NewKeys, place: Placed, out: torch.Tensor, programs: int) -> None:
    new = NewRows(keys.slots, place.found)
    Fill(new, place.rows, out, programs, keys.pool.dtype, keys.top, keys.reserved)(keys)


@pytest.fixture(params=[False, True], ids=["first to last", "last to first"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run in any order on a GPU: whatever one reads, no other of the launch may write."""
    if not request.param:
        return
    builder = interpreter.interpreter_builder
    plainly = builder.set_grid_idx

    def reversed_grid(x: int, y: int, z: int) -> None:
        plainly(builder.grid_dim[0] - 1 - x, y, z)

    monkeypatch.setattr(builder, "set_grid_idx", reversed_grid)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("step", STEPS, ids=["alone", "shared", "nested", "fresh", "long"])
@pytest.mark.parametrize(("dtype", "model"), DTYPES)
def test_pool_and_buffer_are_as_after_a_write_and_a_gather(
    step: Step, dtype: torch.dtype, model: torch.dtype
) -> None:
    keys, reference = new_keys(step, dtype, model), new_keys(step, dtype, model)
    place = placed(step, keys.slots)
    write_rows(reference)
    out, whole = guarded(POOL, model)
    untouched = whole.clone()
    fill(keys, place, out, 2)
    assert torch.equal(keys.pool.view(torch.uint8), reference.pool.view(torch.uint8))
    assert same_bits(out[place.entries], reference.pool[step.named].to(model))
    count = int(place.rows.count)
    assert count == len(set(step.named.tolist()))
    assert torch.equal(out[count:], untouched[64 + count : 64 + POOL])


def test_a_gather_of_the_same_step_takes_all_rows() -> None:
    """Of a layer whose keys are not written in this step, or in a launch of their own."""
    keys = new_keys(SHARED, torch.float8_e4m3fn, torch.bfloat16)
    place = placed(SHARED, keys.slots)
    out, _ = guarded(POOL, torch.bfloat16)
    gather_rows(keys.pool, place.rows.slots, place.rows.count, out, 2)
    assert same_bits(out[place.entries], keys.pool[SHARED.named].bfloat16())


@pytest.mark.parametrize("step", [ALONE, LONG], ids=["in a first tile", "in a later one"])
def test_programs_that_gather_leave_the_rows_of_new_tokens_alone(
    monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """What they read of such a slot may be from before its write, and be stored after it."""
    keys = new_keys(step, torch.float8_e4m3fn, torch.bfloat16)
    place = placed(step, keys.slots)
    out, _ = guarded(POOL, torch.bfloat16)
    builder, tokens = interpreter.interpreter_builder, len(keys.slots)
    plainly = builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: plainly(max(x, tokens), y, z))
    fill(keys, place, out, 2)
    assert (out[place.found.long()] == 7).all()
    known = ~torch.isin(step.named, keys.slots)
    assert same_bits(out[place.entries[known]], keys.pool[step.named[known]].bfloat16())


def test_rows_and_keys_may_lie_with_strides_of_their_own() -> None:
    """Those of sglang's draft steps are every n-th of the slots."""
    keys = new_keys(SHARED, torch.float8_e4m3fn, torch.bfloat16, width=640)
    keys = keys._replace(slots=keys.slots[:, None].repeat(1, 3)[:, 1])
    place = placed(SHARED, keys.slots)
    out, _ = guarded(POOL, torch.bfloat16)
    fill(keys, place, out, 4)
    written = torch.cat([keys.nope, keys.rope], -1).to(torch.float8_e4m3fn)
    assert torch.equal(keys.pool[keys.slots].float(), written.float())
    assert same_bits(out[place.entries], keys.pool[SHARED.named].bfloat16())


def test_tokens_that_pad_the_batch_are_written_and_change_no_row() -> None:
    keys = new_keys(PADDED, torch.float8_e4m3fn, torch.bfloat16)
    place = placed(PADDED, keys.slots)
    out, _ = guarded(POOL, torch.bfloat16)
    fill(keys, place, out, 4)
    assert same_bits(out[place.entries], keys.pool[PADDED.named].bfloat16())
    padding = torch.cat([keys.nope[2:], keys.rope[2:]], -1).to(torch.float8_e4m3fn)
    assert any(
        torch.equal(keys.pool[0].view(torch.uint8), key.view(torch.uint8)) for key in padding
    )


def test_the_reserved_slot_keeps_what_it_holds_and_is_gathered() -> None:
    """A padded request reads it, and its token, of NaN, is to be written there."""
    step = Step([[9, 4, 30], [0]], [1, 1])
    keys = new_keys(step, torch.float8_e4m3fn, torch.bfloat16, reserved=0)
    keys.nope[1:] = float("nan")
    before = keys.pool[0].clone()
    place = placed(step, keys.slots, reserved=0)
    out, _ = guarded(POOL, torch.bfloat16)
    fill(keys, place, out, 4)
    assert torch.equal(keys.pool[0].view(torch.uint8), before.view(torch.uint8))
    assert same_bits(out[place.entries], keys.pool[step.named].bfloat16())


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_rows_beyond_the_buffer_are_not_written(capacity: int) -> None:
    keys = new_keys(SHARED, torch.float8_e4m3fn, torch.bfloat16)
    place = placed(SHARED, keys.slots, capacity)
    out, whole = guarded(capacity, torch.bfloat16)
    fill(keys, place, out, 4)
    assert (whole[:64] == 7).all()
    assert (whole[64 + capacity :] == 7).all()
