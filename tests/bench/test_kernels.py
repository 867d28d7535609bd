"""The attention benchmark: points, windows of rows, errors and the results file, without a GPU."""

from __future__ import annotations

import json
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import kernel_records, kernels, strategies
from bench.cases import Case, Pools, Spot, Timed, capture, layers_for

ROWS = 512
HOST = {"device": "card"}


@pytest.fixture(scope="module")
def pools() -> Pools:
    return Pools(ROWS, 3, torch.device("cpu"))


@pytest.mark.parametrize("text", ["16x100", "0:1x1", "16:", "16:1x-1"])
def test_a_point_that_is_none_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        Spot.parse(text)


def test_layers_read_four_times_the_cache() -> None:
    assert layers_for(1_000_000, 60 << 20) * 1_000_000 >= 4 * (60 << 20)


def test_every_layer_is_another_window(pools: Pools) -> None:
    for layers in (3, 16):
        starts = {pools.layer(pools.fp8, number, layers).data_ptr() for number in range(layers)}
        assert len(starts) == layers
        assert pools.layer(pools.fp8, layers - 1, layers).shape[0] == ROWS


def test_layers_without_a_window_of_their_own_are_refused(pools: Pools) -> None:
    with pytest.raises(ValueError, match="3 copies of 512 rows have no 1000 windows of their own"):
        pools.layer(pools.fp8, 1, 1000)


def test_bf16_rows_hold_the_values_of_the_fp8_rows(pools: Pools) -> None:
    assert torch.equal(pools.bf16.float(), pools.fp8.float())


def test_error_is_small_for_the_right_rows_and_large_for_others(pools: Pools) -> None:
    case = Case(Spot.parse("8:2x100"), pools)
    scores = case.query.float() @ pools.fp8[case.slots.long(), 0].float().T * 192**-0.5
    own = torch.arange(200) // 100 == torch.arange(2)[:, None]
    weights = scores.masked_fill(~own[:, None], -torch.inf).softmax(-1)
    out = weights @ pools.fp8[case.slots.long(), 0, :512].float()
    assert case.error(out, case.slots, pools.fp8[:ROWS]) < 1e-5
    assert case.error(out, case.slots.flip(0), pools.fp8[:ROWS]) > 0.5
    assert case.error(out, case.slots, pools.fp8[ROWS:]) > 0.5


def test_paged_slots_follow_the_block_table(pools: Pools) -> None:
    case = Case(Spot.parse("8:2x100"), pools)
    slots, table = case.paged_slots(), case.block_table()
    assert slots.shape == (200,)
    assert int(slots[100]) == int(table[1, 0]) * 64
    assert int(slots[64]) == int(table[0, 1]) * 64


def test_ratios_pair_replays_of_the_same_turn() -> None:
    assert kernels.median_ratio({"us": [2.0, 9.0, 4.0]}, {"us": [1.0, 3.0, 2.0]}) == 2.0
    assert kernels.median_ratio({"us": [2.0]}, {"failed": "no such kernel"}) is None


def test_a_strategy_measured_again_replaces_its_figures_alone(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    for point, measured in (("a", {"x": 1, "y": 1}), ("b", {"x": 2}), ("a", {"x": 3, "z": 3})):
        kernel_records.save(path, {"point": point, "host": HOST, "strategies": measured})
    points = json.loads(path.read_text())["points"]
    found = {entry["point"]: entry["strategies"] for entry in points}
    assert found == {"a": {"x": 3, "y": 1, "z": 3}, "b": {"x": 2}}


def test_figures_of_another_host_are_left_alone_and_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernels.json"
    kernel_records.save(path, {"point": "16:1x100", "host": HOST, "strategies": {"x": 1}})
    before = path.read_bytes()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "host", lambda: {"device": "newer card"})
    with pytest.raises(SystemExit) as stopped:
        kernels.main(["--out", str(path)])
    assert stopped.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "holds figures of device card, this is device newer card: name another file" in said
    assert path.read_bytes() == before


def test_what_is_measured_has_every_strategy(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    for point, names in (("a", "xy"), ("b", "x")):
        figures = dict.fromkeys(names, 1)
        kernel_records.save(path, {"point": point, "host": HOST, "strategies": figures})
    assert kernel_records.measured(path, ["x", "y"]) == {"a"}


def test_a_run_continues_with_the_points_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernels.json"
    asked: list[str] = []

    def measure_all(_: object, spots: list[Spot]) -> int:
        asked.extend(map(str, spots))
        return 0

    record = {"point": "16:1x100", "host": HOST, "strategies": dict.fromkeys(strategies.STRATEGIES)}
    kernel_records.save(path, record)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "host", lambda: HOST)
    monkeypatch.setattr(kernels, "_measure_all", measure_all)
    points = ["--points", "16:1x100", "16:1x8192"]
    assert kernels.main(["--out", str(path), "--missing", *points]) == 0
    assert asked == ["16:1x8192"]
    assert kernels.main(["--out", str(path), *points]) == 0
    assert len(asked) == 3, "without --missing both are measured again"


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "host", lambda: HOST)
    with pytest.raises(SystemExit) as stopped:
        kernels.main(["--out", str(tmp_path / "file" / "kernels.json")])
    assert stopped.value.code == 2
    assert "name another file" in capsys.readouterr().err.splitlines()[-1]


def test_a_configuration_of_the_direct_kernel_is_a_strategy(
    monkeypatch: pytest.MonkeyPatch, pools: Pools
) -> None:
    made: list[tuple[Any, ...]] = []

    def config(*fields: Any) -> None:
        made.append(fields)
        raise LookupError

    monkeypatch.setattr(strategies, "load", lambda name: SimpleNamespace(Config=config))
    with pytest.raises(LookupError):
        strategies.parse("direct:16/64/8/3/-/1/64/mma").prepare(Case(Spot.parse("8:2x100"), pools))
    assert made == [(16, 64, 8, 3, None, 1, 64, "mma")]


@pytest.mark.parametrize("text", ["fa4", "direct:", "direct:16/x", "stock:16"])
def test_an_unknown_strategy_is_a_usage_error(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        kernels.main(["--out", "x.json", "--strategies", text])
    assert stopped.value.code == 2
    assert f"{text!r} is no strategy" in capsys.readouterr().err


def test_a_captured_strategy_keeps_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda _graph: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def prepare() -> tuple[Timed, weakref.ref[torch.Tensor]]:
        workspace = torch.zeros(1)
        return capture(lambda number: workspace + number, 3), weakref.ref(workspace)

    captured, workspace = prepare()
    assert workspace() is not None
    assert captured.out.tolist() == [2.0], "the output of the last layer"


def test_usage_errors_exit_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        kernels.main(["--out", "x.json", "--points", "16:64x100000"])
    assert stopped.value.code == 2
    assert "--pool 495552 holds fewer rows than the 6400000 of a point" in capsys.readouterr().err
