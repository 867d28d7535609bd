"""One engine in one process: starts it, answers loads over a pipe, and ends with its parent.

`sglang.Engine` starts processes of its own; the worker leads a session, so that one signal to its
process group ends them all.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.setups import WRONG_ROW_VARIABLE, Setup, engine_options

# Output is sent with the first token and at the end: anything in between would cost time.
STREAM_INTERVAL = 1 << 20


@dataclass(frozen=True)
class Launch:
    """What a worker starts.

    Attributes:
        setup: what to serve.
        model: checkpoint folder.
        pool: KV pool in tokens; None fills the memory.
        fraction: share of the free device memory for weights and pool.
        log: file for everything that the engine prints.
        probe_layer: the layer that a wrong-row setup disturbs.
    """

    setup: Setup
    model: str
    pool: int | None
    fraction: float
    log: Path
    probe_layer: int = 0


def run(launch: Launch, connection: Connection) -> None:
    """Process entry: sends a description, then a measurement for each load that it receives.

    A failure is sent as {"error": sentence}; the log file has the details.
    """
    os.setsid()
    _redirect(launch.log)
    try:
        engine = _start(launch)
        connection.send(describe(engine))
        while (load := connection.recv()) is not None:
            connection.send(measure(engine, load["prompts"], load["tokens"]))
    except EOFError:  # the parent is gone
        pass
    except Exception as failure:
        traceback.print_exc()
        connection.send({"error": f"{type(failure).__name__}: {failure}"})
        return
    engine.shutdown()


def _redirect(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(target, sys.stdout.fileno())
    os.dup2(target, sys.stderr.fileno())


def _start(launch: Launch) -> Any:
    os.environ.update(launch.setup.environment)
    if launch.setup.wrong_row:
        os.environ[WRONG_ROW_VARIABLE] = str(launch.probe_layer)
    engine = "bench.fault" if launch.setup.wrong_row else "sglang.srt.entrypoints.engine"
    start = importlib.import_module(engine).Engine
    return start(**engine_options(launch.setup, launch.model, launch.pool, launch.fraction))


def describe(engine: Any) -> dict[str, Any]:
    """The resolved options that matter, the pool's size in tokens, and the host."""
    info = engine.get_server_info()
    names = ("attention_backend", "kv_cache_dtype", "page_size", "max_total_num_tokens", "version")
    return {"resolved": {name: info.get(name) for name in names}, "host": host()}


def host() -> dict[str, str]:
    """The device, and the versions that a figure depends on."""
    import torch

    packages = ("sglang", "flashinfer-python", "triton", "sglang-kernel")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "device": device,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def measure(engine: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Generate `tokens` greedy tokens for each prompt.

    Returns:
        ttft_ms: time to the first token of each request, from submission of the batch.
        tpot_ms: time a token once every request decodes: from the last first token to the first
            end, over the steps in between.
        output: the tokens of each request.
    """
    sampling = {
        "temperature": 0.0,
        "max_new_tokens": tokens,
        "ignore_eos": True,
        "stream_interval": STREAM_INTERVAL,
    }
    start = time.perf_counter()
    chunks = engine.generate(input_ids=prompts, sampling_params=sampling, stream=True)
    return timings(((time.perf_counter() - start, chunk) for chunk in chunks), len(prompts), tokens)


def timings(
    arrivals: Iterable[tuple[float, dict[str, Any]]], requests: int, tokens: int
) -> dict[str, Any]:
    """Figures of `measure` from (seconds, chunk) pairs; RuntimeError if a request is not whole."""
    first: dict[int, float] = {}
    ended: dict[int, float] = {}
    output: dict[int, list[int]] = {}
    for seconds, chunk in arrivals:
        request = chunk.get("index", 0)
        first.setdefault(request, seconds)
        if chunk["meta_info"]["finish_reason"]:
            ended[request] = seconds
            output[request] = list(chunk["output_ids"])
    whole = [len(output.get(request, [])) == tokens for request in range(requests)]
    if not all(whole):
        raise RuntimeError(f"{whole.count(False)} of {requests} requests ended early.")
    steps = tokens - 1
    return {
        "ttft_ms": [1e3 * first[request] for request in range(requests)],
        "tpot_ms": 1e3 * (min(ended.values()) - max(first.values())) / steps,
        "output": [output[request] for request in range(requests)],
    }
