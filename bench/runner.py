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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bench import json_file
from bench.cores import shares
from bench.loads import Load, Requests, requests
from bench.lookup import read_task
from bench.results import Results, record
from bench.setups import Engine, Setup
from bench.worker import Launch, Trace
from bench.worker import run as serve

TRACE_TOKENS = 8
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
        interleave: all engines at once, their repeats interleaved.
        logs: folder for what the engines print.
        trace: folder for a profiler trace of each engine, under the first load; None: no trace.
    """

    engine: Engine
    setups: list[Setup]
    loads: list[Load]
    repeats: int
    tokens: int
    interleave: bool
    logs: Path
    trace: Path | None = None

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
            **({"accepted": self.engine.accepted} if self.engine.accepted else {}),
        }


class Worker:
    """A running engine, as its parent sees it."""

    def __init__(self, launch: Launch) -> None:
        context = multiprocessing.get_context("spawn")
        self.setup = launch.setup
        self.description: dict[str, Any] = {}
        self._log = launch.log
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(launch, other))
        self._started = time.monotonic()
        self._process.start()
        _say(f"{self.setup.name}: starting")
        other.close()

    def wait_until_ready(self) -> None:
        self.description = self.receive()
        _say(f"{self.setup.name}: ready after {time.monotonic() - self._started:.0f} s")

    def receive(self) -> dict[str, Any]:
        """The next message; WorkerFailed if the engine reports a failure or has died."""
        try:
            message: dict[str, Any] = self._connection.recv()
        except EOFError:
            message = {"error": "the engine's process ended"}
        if "error" in message:
            raise WorkerFailed(f"{self.setup.name}: {message['error']}; see {self._log}.")
        return message

    def measure(self, asked: Requests | Trace) -> dict[str, Any]:
        self._connection.send(asked)
        return self.receive()

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Ask it to end, then end its process group: nothing stays behind."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        end(self._process, grace)


def end(process: BaseProcess, grace: float) -> None:
    """End the process group that a process leads, or is about to, if it lasts beyond `grace`."""
    process.join(grace)
    pid = process.pid
    process.kill()  # one that has not yet become its group's leader
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    process.join()


def run(plan: Plan, results: Results) -> None:
    """Measure what `results` lacks of the plan, and save after each load.

    Raises:
        WorkerFailed: an engine did not start, told after the others were measured, or one ended
            under a load.
        ValueError: the results can't be written, or are of another host.
    """
    results.save()  # refused now, not after the first load
    groups = [plan.setups] if plan.interleave else [[setup] for setup in plan.setups]
    failures: list[str] = []
    lacking = [_lacking(plan, group, results) for group in groups]
    if not any(lacking):
        device = results.records[0]["host"]["device"]
        _say(f"{results.path} has all of it, measured on {device}: nothing is run")
    for group, missing in zip(groups, lacking, strict=True):
        if missing:
            with _workers(plan, group, failures) as workers:
                for worker in workers:
                    host = worker.description["host"]
                    json_file.require_host(results.path, results.records, host)
                # One that never starts must not have the others measured again each time.
                for load in _lacking(plan, [worker.setup for worker in workers], results):
                    _measure(plan, load, workers, results)
                if plan.trace:
                    _trace(plan, plan.trace, workers)
    if failures:
        raise WorkerFailed("\n".join(failures))


def _lacking(plan: Plan, group: list[Setup], results: Results) -> list[Load]:
    return [x for x in plan.loads if any(not results.find(s.name, x) for s in group)]


@contextlib.contextmanager
def _workers(plan: Plan, group: list[Setup], failures: list[str]) -> Iterator[list[Worker]]:
    """The engines of a group that start, all at once: most of a start is the CPU's work."""
    workers: list[Worker] = []
    grace = 0.0
    try:
        for setup, cpus in zip(group, shares(len(group)), strict=True):
            workers.append(Worker(_launch(plan, setup, cpus)))
        for worker in list(workers):
            try:
                worker.wait_until_ready()
                _check_pool(plan, worker)
            except WorkerFailed as failure:
                failures.append(str(failure))
                workers.remove(worker)
                worker.stop(0.0)
        yield workers
        grace = GRACE_SECONDS
    finally:
        for worker in workers:
            worker.stop(grace)


def _check_pool(plan: Plan, worker: Worker) -> None:
    """WorkerFailed if the engine had no memory for the pool that was asked for."""
    asked = plan.engine.arguments(worker.setup)["max_total_tokens"]
    got = worker.description["resolved"]["max_total_num_tokens"]
    if isinstance(asked, int) and got < asked:
        raise WorkerFailed(
            f"{worker.setup.name}: the pool holds {got} tokens, not {asked}: give a larger "
            "--fraction or a smaller --pool."
        )


def _launch(plan: Plan, setup: Setup, cpus: frozenset[int]) -> Launch:
    task = read_task(Path(plan.engine.model))
    probe = task.probe_layer if task else 0
    return Launch(setup, plan.engine, plan.logs / f"{setup.name}.log", probe, cpus)


def _measure(plan: Plan, load: Load, workers: list[Worker], results: Results) -> None:
    asked = requests(Path(plan.engine.model), load, plan.tokens)
    measured: dict[str, list[dict[str, Any]]] = {worker.setup.name: [] for worker in workers}
    for repeat in range(plan.repeats + 1):
        # To and fro: whatever the one before leaves behind, each engine meets it as often.
        for worker in workers if repeat % 2 else reversed(workers):
            if not (repeat and worker.setup.wrong_row):  # of a wrong row only the tokens matter
                _say(f"{worker.setup.name} {load}: {repeat} of {plan.repeats}")
                measured[worker.setup.name].append(worker.measure(asked))
    for worker in workers:
        name = worker.setup.name
        runs = measured[name][1:] or measured[name]  # the first one warmed up
        answers = None if plan.engine.accepted else asked.answers  # then any token passes
        fresh = record(name, load, worker.description, runs, answers)
        results.add(fresh, replace=plan.interleave)  # a ratio is of turns of the same run
    results.save()


def _trace(plan: Plan, folder: Path, workers: list[Worker]) -> None:
    asked = requests(Path(plan.engine.model), plan.loads[0], TRACE_TOKENS)
    for worker in workers:
        _say(f"{worker.setup.name} {plan.loads[0]}: trace")
        worker.measure(Trace(asked, folder))


def _say(text: str) -> None:
    """A progress line: rewritten on a terminal, a line each in a log."""
    start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
