"""Figures of a generation from the times at which its chunks arrive."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from bench.loads import Load, requests
from bench.worker import host, measure, timings
from tests.bench.serving import TASK


def chunk(request: int, tokens: list[int], end: bool = False) -> dict[str, Any]:
    reason = {"type": "length"} if end else None
    return {"index": request, "output_ids": tokens, "meta_info": {"finish_reason": reason}}


def test_a_token_takes_the_time_between_the_last_start_and_the_first_end() -> None:
    arrivals = [
        (0.1, chunk(0, [5])),
        (0.4, chunk(1, [7])),
        (1.0, chunk(1, [7, 8, 9], end=True)),
        (1.2, chunk(0, [5, 6, 7], end=True)),
    ]
    figures = timings(arrivals, requests=2, tokens=3)
    assert figures["tpot_ms"] == pytest.approx(300.0)
    assert figures["ttft_ms"] == pytest.approx([100.0, 400.0])
    assert figures["output"] == [[5, 6, 7], [7, 8, 9]]


def test_a_request_that_ends_early_is_no_figure() -> None:
    arrivals = [(0.1, chunk(0, [5])), (0.2, chunk(0, [5, 6], end=True))]
    with pytest.raises(RuntimeError, match="1 of 1 requests ended early"):
        timings(arrivals, requests=1, tokens=3)


class Cache:
    """An engine that counts what it has cached, busy when first asked to flush."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int]] = []
        self.busy = True

    def flush_cache(self) -> Any:
        busy, self.busy = self.busy, False
        self.log.append(("flush", 0, 0))
        return type("Answer", (), {"success": not busy})

    def generate(self, input_ids: Any, sampling_params: Any, stream: bool) -> Any:
        tokens = sampling_params["max_new_tokens"]
        self.log.append(("generate", len(input_ids[0]), tokens))
        return iter([chunk(i, [1] * tokens, end=True) for i in range(len(input_ids))])


def test_only_the_prefix_is_cached_when_a_load_starts(model: Any) -> None:
    engine = Cache()
    measure(engine, requests(model, Load.parse("2x100+30"), 4))
    assert engine.log == [
        ("flush", 0, 0),
        ("flush", 0, 0),
        ("generate", 30, 1),
        ("generate", 130, 4),
    ]


def test_every_request_follows_another_cycle_to_its_known_end(model: Any) -> None:
    asked = requests(model, Load.parse("16x200"), 4)
    assert asked.answers is not None
    assert len({answer[0] // 97 for answer in asked.answers}) == 16
    for prompt, answer in zip(asked.prompts, asked.answers, strict=True):
        cycle = [token for token in prompt if token // 97 == answer[0] // 97]
        assert sorted(cycle) == list(range(min(cycle), min(cycle) + 97))
        assert (answer[0] - prompt[-1] - TASK.layers) % 97 == 0


@pytest.mark.parametrize("text", ["8192", "0x5", "1x", "x1", "1x100+0", "1x1+", "1x100 ", "a1x1"])
def test_what_is_not_a_load_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a load"):
        Load.parse(text)


@pytest.mark.parametrize("text", ["1x100", "16x8192", "1x2048+256"])
def test_a_load_is_written_as_it_is_read(text: str) -> None:
    assert str(Load.parse(text)) == text


def test_a_package_without_metadata_tells_its_version_itself_though_nobody_imported_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").write_text('__version__ = "0.5.17"')
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "sglang", None)
    del sys.modules["sglang"]  # monkeypatch puts back what was there
    monkeypatch.setitem(sys.modules, "triton", None)
    versions = host()
    assert versions["sglang"] == "0.5.17"
    assert versions["triton"] == "not installed"
