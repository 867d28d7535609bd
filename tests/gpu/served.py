"""Engines that are served for tests: each in a process of its own, started together."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from bench.model import write
from bench.runner import end
from bench.setups import SETUPS, Engine
from tests.gpu.engine_calls import Answer, Ask, ask, serve
from tests.gpu.lookups import SHAPE

POOL = 65_536
# Below those that the system gives out at random, and apart for test processes beside this one.
PORTS = count(20_000 + os.getpid() % 200 * 60, 20)
START_SECONDS = 240.0
CALL_SECONDS = 180.0
STOP_SECONDS = 20.0
LOG_LINES = 25


class EngineFailed(RuntimeError):
    """An engine did not start, died, or took too long; the message ends with its log."""


class Served:
    """A served engine, as tests see it.

    Args:
        name: of the setup in `bench.setups`.
        engine: model, pool and options.
        log: file for what the engine prints.
    """

    def __init__(self, name: str, engine: Engine, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        setup = SETUPS[name]
        self.name, self.log = name, log
        self._ready = False
        self._connection, other = context.Pipe()
        entry = (engine.arguments(setup), setup.environment, log, other)
        self._process = context.Process(target=serve, args=entry)
        self._process.start()
        other.close()

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the engine's process run a function of `engine_calls`; `receive` its result.

        The first call waits until the engine is up.
        """
        if not self._ready:
            self.receive(START_SECONDS)
            self._ready = True
        self._connection.send((function, *arguments))

    def receive(self, seconds: float = CALL_SECONDS) -> Any:
        """What the function returned; EngineFailed for what it raised."""
        try:
            if not self._connection.poll(seconds):
                self.stop(0.0)  # a late answer must not pass for that of the next call
                raise EngineFailed(self._told(f"no answer in {seconds:.0f} s"))
            returned, result = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise EngineFailed(self._told("its process ended")) from error
        if not returned:
            raise EngineFailed(self._told(result))
        return result

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.send(function, *arguments)
        return self.receive()

    def ask(self, asked: list[Ask]) -> list[Answer]:
        answers: list[Answer] = self.call(ask, asked)
        return answers

    def _told(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"{self.name}: {what}; its log ends:", *lines[-LOG_LINES:]])

    def ask_to_stop(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(None)

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """End its process group: nothing stays behind, also of an engine that hangs."""
        end(self._process, grace)


@contextlib.contextmanager
def running(folder: Path, engines: dict[str, tuple[str, Engine]]) -> Iterator[dict[str, Served]]:
    """Engines by their labels, each of a setup, started at the same time; stopped at the end.

    One that does not start fails those who ask it, and nobody else.
    """
    served = {label: Served(*of, folder / f"{label}.log") for label, of in engines.items()}
    try:
        yield served
    finally:
        for one in served.values():
            one.ask_to_stop()
        for one in served.values():
            one.stop()


def engine(model: Path, options: Mapping[str, object] | None = None, pool: int = POOL) -> Engine:
    """An engine with the prefix cache on and few graphs, which leaves room for others."""
    common: dict[str, object] = {"cuda_graph_bs_decode": [1, 4, 16, 64], "port": next(PORTS)}
    return Engine(str(model), pool, 0.6, cached_prefix=True, options={**common, **(options or {})})


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A checkpoint that the first of several test processes makes."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_suffix(".part")
            make(part)
            part.rename(folder)
    return folder


def make_model(folder: Path) -> None:
    write(SHAPE, folder, device="cuda")
