"""Starts the engines of a plan, sends them the loads and records what comes back."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loads import Load, Requests, requests
from bench.lookup import read_task
from bench.results import Results, record
from bench.setups import SETUPS, Engine, Setup
from bench.worker import Launch
from bench.worker import run as serve

GRACE_SECONDS = 60.0  # an engine waits until its device memory is given back


class WorkerFailed(RuntimeError):
    """An engine did not start or did not finish a load; the message is for the user."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        engine: model, pool and options.
        setups, loads: every setup is measured under every load.
        repeats: measured generations, after one that warms up.
        tokens: tokens to generate.
        interleave: all engines at once, measured by turns.
        logs: folder for what the engines print.
    """

    engine: Engine
    setups: list[Setup]
    loads: list[Load]
    repeats: int
    tokens: int
    interleave: bool
    logs: Path

    def about(self) -> dict[str, Any]:
        """What a results file says of the run; files of different runs are not mixed."""
        model = Path(self.engine.model)
        task = read_task(model)
        return {
            "model": model.name,
            "layers": task.layers if task else None,
            "pool": self.engine.pool,
            "options": self.engine.options,
            "tokens": self.tokens,
            "repeats": self.repeats,
            "interleaved": self.interleave,
        }


class Worker:
    """A running engine, as its parent sees it."""

    def __init__(self, launch: Launch) -> None:
        context = multiprocessing.get_context("spawn")
        self._launch = launch
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(launch, other))
        self._process.start()
        other.close()

    def receive(self) -> dict[str, Any]:
        """The next message; WorkerFailed if the engine reports a failure or has died."""
        try:
            message: dict[str, Any] = self._connection.recv()
        except EOFError:
            message = {"error": "the engine's process ended"}
        if "error" in message:
            name, log = self._launch.setup.name, self._launch.log
            raise WorkerFailed(f"{name}: {message['error']}; see {log}.")
        return message

    def measure(self, asked: Requests) -> dict[str, Any]:
        self._connection.send(asked)
        return self.receive()

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Ask it to end, then end its process group: nothing stays behind."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(grace)
        pid = self._process.pid
        self._process.kill()  # one that has not yet become its group's leader
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._process.join()


def run(plan: Plan, results: Results) -> None:
    """Measure what `results` lacks of the plan, and save after each load."""
    groups = [plan.setups] if plan.interleave else [[setup] for setup in plan.setups]
    for group in groups:
        missing = [x for x in plan.loads if any(not results.find(s.name, x) for s in group)]
        if missing:
            with _workers(plan, group) as workers:
                for load in missing:
                    _measure(plan, load, workers, results)


@contextlib.contextmanager
def _workers(plan: Plan, group: list[Setup]) -> Iterator[dict[str, tuple[Worker, dict[str, Any]]]]:
    """Running engines by name, with their descriptions; one starts after the other has its pool."""
    task = read_task(Path(plan.engine.model))
    workers: list[Worker] = []
    started: dict[str, tuple[Worker, dict[str, Any]]] = {}
    grace = 0.0
    try:
        for setup in group:
            begin = time.monotonic()
            log = plan.logs / f"{setup.name}.log"
            probe = task.probe_layer if task else 0
            launch = Launch(setup, plan.engine, log, probe)
            _say(f"{setup.name}: starting")
            workers.append(Worker(launch))
            started[setup.name] = (workers[-1], workers[-1].receive())
            _say(f"{setup.name}: ready after {time.monotonic() - begin:.0f} s")
        yield started
        grace = GRACE_SECONDS
    finally:
        for worker in workers:
            worker.stop(grace)


def _measure(
    plan: Plan,
    load: Load,
    workers: dict[str, tuple[Worker, dict[str, Any]]],
    results: Results,
) -> None:
    asked = requests(Path(plan.engine.model), load, plan.tokens)
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for repeat in range(plan.repeats + 1):
        for name, (worker, _) in workers.items():
            if repeat and SETUPS[name].wrong_row:
                continue  # only its tokens matter
            _say(f"{name} {load}: {repeat} of {plan.repeats}")
            measured[name].append(worker.measure(asked))
    for name, (_, description) in workers.items():
        if not results.find(name, load):
            runs = measured[name][1:] or measured[name]  # the first one warmed up
            results.records.append(record(name, load, description, runs, asked.answers))
    results.save()


def _say(text: str) -> None:
    """A progress line: rewritten on a terminal, a line each in a log."""
    start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
