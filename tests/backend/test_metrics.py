"""Counters and the fallback line: what they say, how seldom, and that nothing waits for them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
import pytest
import torch

from bench.overlay import load

metrics = load("metrics")

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
TARGET = {"model": "target", "tp_rank": "0", "pp_rank": "0"}
DRAFT = {**TARGET, "model": "draft"}


class Event:
    """A CUDA event whose work is done when the test says so; there is no way to wait for it."""

    done = True

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.done


class OnDevice(torch.Tensor):
    """A tensor whose values the host may copy without waiting, and not look at."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        allowed = func is torch.Tensor.copy_ and (kwargs or {}).get("non_blocking")
        assert allowed, f"{func} would wait for the device"
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def on_device(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32).as_subclass(OnDevice)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str] | None], Any]:
    """Makes a step counter; the process's counters start from nothing."""
    registry = prometheus.CollectorRegistry()
    counter = prometheus.Counter
    monkeypatch.setattr(prometheus, "Counter", partial(counter, registry=registry))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "done", True)
    metrics.counters.cache_clear()

    def watch(labels: dict[str, str] | None) -> Any:
        made = metrics.StepCounter(labels, CPU)
        made.registry = registry
        return made

    return watch


def run_steps(watch: Any, count: int, read: str = "gather", total: int = 0, rows: int = 0) -> None:
    for _ in range(count):
        watch.step(read, on_device(total), on_device(rows))


def value(watch: Any, name: str, **labels: str) -> float | None:
    found = watch.registry.get_sample_value(f"sglang:mla_compact_{name}", {**TARGET, **labels})
    return None if found is None else float(found)


def test_without_metrics_nothing_is_touched_and_prometheus_is_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    watch = metrics.StepCounter(None, CPU)
    for _ in range(2 * metrics.SAMPLE_EVERY):
        watch.step("gather", None, None)
    watch.fallback(910)


def test_a_sample_is_counted_when_the_next_one_is_due(make: Any) -> None:
    watch = make(TARGET)
    run_steps(watch, metrics.SAMPLE_EVERY, total=300, rows=180)
    assert value(watch, "sampled_steps_total") is None
    run_steps(watch, metrics.SAMPLE_EVERY - 1, total=9, rows=9)
    assert value(watch, "sampled_steps_total") is None
    run_steps(watch, 1, total=5, rows=5)
    assert value(watch, "sampled_steps_total") == 1
    assert value(watch, "rows_total", read="gather") == 180
    assert value(watch, "shared_rows_saved_total") == 120


def test_rows_are_counted_by_how_they_were_read(make: Any) -> None:
    watch = make(TARGET)
    run_steps(watch, metrics.SAMPLE_EVERY, "direct", 50, 50)
    run_steps(watch, metrics.SAMPLE_EVERY, "gather", 7, 7)
    run_steps(watch, metrics.SAMPLE_EVERY, "gather", 1, 1)
    assert value(watch, "rows_total", read="direct") == 50
    assert value(watch, "rows_total", read="gather") == 7
    assert value(watch, "shared_rows_saved_total") == 0


def test_a_copy_that_is_still_on_its_way_is_given_up_not_waited_for(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = make(TARGET)
    run_steps(watch, metrics.SAMPLE_EVERY, total=300, rows=300)
    monkeypatch.setattr(Event, "done", False)
    run_steps(watch, metrics.SAMPLE_EVERY, total=40, rows=40)
    assert value(watch, "sampled_steps_total") is None
    monkeypatch.setattr(Event, "done", True)
    run_steps(watch, metrics.SAMPLE_EVERY, total=1, rows=1)
    assert value(watch, "rows_total", read="gather") == 40


def test_target_and_draft_have_one_set_of_counters(make: Any) -> None:
    target, draft = make(TARGET), make(DRAFT)
    run_steps(target, 2 * metrics.SAMPLE_EVERY, total=10, rows=10)
    run_steps(draft, 2 * metrics.SAMPLE_EVERY, total=3, rows=3)
    assert value(target, "rows_total", read="gather") == 10
    assert value(target, "rows_total", read="gather", model="draft") == 3


def test_each_fallback_is_counted_and_one_a_minute_is_told(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    watch = make(TARGET)
    caplog.set_level(logging.WARNING)
    for _ in range(4):
        watch.fallback(910)
    assert len(caplog.records) == 1
    assert "it may need more rows than the compact buffer's 910 (1 such" in caplog.text
    assert metrics.BUFFER_VARIABLE in caplog.text
    now += 59
    watch.fallback(910)
    assert len(caplog.records) == 1
    now += 1
    watch.fallback(910)
    assert "(5 such" in caplog.records[1].getMessage()
    assert value(watch, "fallbacks_total") == 6


SCHEDULER = """
import sys
import torch
from bench.overlay import load
torch.cuda.Event = object  # torch for the CPU has none
metrics = load("metrics")
labels = {"model": "target", "tp_rank": sys.argv[1], "pp_rank": "0"}
watch = metrics.StepCounter(labels, torch.device("cpu"))
for _ in range(int(sys.argv[2])):
    watch.fallback(910)
"""

ENDPOINT = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_counters_of_schedulers_reach_the_endpoint_of_another_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for arguments in (["0", "2"], ["1", "3"]):
        command = [sys.executable, "-c", SCHEDULER, *arguments]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
    command = [sys.executable, "-c", ENDPOINT]
    text = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
    found = re.findall(r"^sglang:mla_compact_fallbacks_total{(.*)} (\S+)$", text, re.MULTILINE)
    assert sorted((re.findall('tp_rank="(.)"', labels)[0], float(n)) for labels, n in found) == [
        ("0", 2.0),
        ("1", 3.0),
    ]


def test_the_documented_counters_are_those_there_are(make: Any) -> None:
    watch = make(TARGET)
    there = {f"{family.name}_total" for family in watch.registry.collect()}
    page = (ROOT / "docs/performance.md").read_text()
    assert set(re.findall(r"^\| `(sglang:\w+)` \|", page, re.MULTILINE)) == there
    assert f"one in {metrics.SAMPLE_EVERY}" in page
