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

from bench.loads import Requests
from bench.setups import WRONG_ROW_VARIABLE, Engine, Setup

# Output is sent with the first token and at the end: anything in between would cost time.
STREAM_INTERVAL = 1 << 20


@dataclass(frozen=True)
class Launch:
    """What a worker starts.

    Attributes:
        setup: what to serve.
        engine: what all engines of the run have in common.
        log: file for everything that the engine prints.
        probe_layer: the layer that a wrong-row setup disturbs.
        cpus: those that the engine's processes may use; empty for all.
    """

    setup: Setup
    engine: Engine
    log: Path
    probe_layer: int = 0
    cpus: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Trace:
    """Requests to be answered under the profiler; the trace is written to `folder`."""

    asked: Requests
    folder: Path


def run(launch: Launch, connection: Connection) -> None:
    """Process entry: sends a description, then an answer for each `Requests` or `Trace`.

    A failure is sent as {"error": sentence}; the log file has the details.
    """
    os.setsid()
    _redirect(launch.log)
    if launch.cpus:
        os.sched_setaffinity(0, launch.cpus)
    try:
        engine = _start(launch)
        connection.send(describe(engine))
        while (asked := connection.recv()) is not None:
            if isinstance(asked, Trace):
                connection.send(record_trace(engine, asked, launch.setup.name))
            else:
                connection.send(measure(engine, asked))
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
    os.environ.update(launch.engine.environment() | launch.setup.environment)
    if launch.setup.wrong_row:
        os.environ[WRONG_ROW_VARIABLE] = str(launch.probe_layer)
    module = "bench.fault" if launch.setup.wrong_row else "sglang.srt.entrypoints.engine"
    return importlib.import_module(module).Engine(**launch.engine.arguments(launch.setup))


def describe(engine: Any) -> dict[str, Any]:
    """The resolved options that matter, the pool's size in tokens, and the host."""
    info = engine.get_server_info()
    names = ("attention_backend", "kv_cache_dtype", "page_size", "max_total_num_tokens", "version")
    return {"resolved": {name: info.get(name) for name in names}, "host": host()}


def host() -> dict[str, str]:
    """The device, and the versions that a figure depends on."""
    import torch

    modules = {
        "sglang": "sglang",
        "flashinfer-python": "flashinfer",
        "triton": "triton",
        "sglang-kernel": "sgl_kernel",
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "device": device,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        **{package: _version(package, module) for package, module in modules.items()},
    }


def _version(package: str, module: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a package on PYTHONPATH has no metadata
        pass
    try:  # whoever asks again must be told the same, whatever was imported in between
        return str(getattr(importlib.import_module(module), "__version__", "unknown"))
    except ImportError:
        return "not installed"
    except Exception:  # it lacks a library or a device: what needs it fails, and says so
        return "unknown"


def measure(engine: Any, asked: Requests) -> dict[str, Any]:
    """Generate greedy tokens for requests that are submitted together.

    Returns:
        ttft_ms: time to the first token of each request, from submission of the batch.
        tpot_ms: time a token once every request decodes: from the last first token to the first
            end, over the tokens in between.
        step_ms: the same over the steps in between, which with drafts give several tokens each.
        output: the tokens of each request.
    """
    if asked.prefix:
        _cache(engine, [prompt[: asked.prefix] for prompt in asked.prompts])
    start = time.perf_counter()
    chunks = engine.generate(
        input_ids=asked.prompts, sampling_params=_sampling(asked.tokens), stream=True
    )
    arrivals = ((time.perf_counter() - start, chunk) for chunk in chunks)
    return timings(arrivals, len(asked.prompts), asked.tokens)


def record_trace(engine: Any, trace: Trace, name: str) -> dict[str, Any]:
    """Answer once under the profiler of sglang; files in `folder` start with `name`."""
    trace.folder.mkdir(parents=True, exist_ok=True)
    engine.start_profile(
        output_dir=str(trace.folder),
        activities=["CPU", "GPU"],
        with_stack=False,
        record_shapes=False,
        profile_prefix=name,
    )
    measured = measure(engine, trace.asked)
    engine.stop_profile()
    return measured


def _sampling(tokens: int) -> dict[str, Any]:
    return {
        "temperature": 0.0,
        "max_new_tokens": tokens,
        "ignore_eos": True,
        "stream_interval": STREAM_INTERVAL,
    }


def _cache(engine: Any, prefixes: list[list[int]]) -> None:
    """Leave these prefixes, and nothing else, in the radix cache."""
    deadline = time.monotonic() + 30
    while not engine.flush_cache().success:  # refused until the last batch is put away
        if time.monotonic() > deadline:
            raise RuntimeError("The engine stays busy and can't flush its cache.")
        time.sleep(0.05)
    for _ in engine.generate(input_ids=prefixes, sampling_params=_sampling(1), stream=True):
        pass


def timings(
    arrivals: Iterable[tuple[float, dict[str, Any]]], requests: int, tokens: int
) -> dict[str, Any]:
    """Figures of `measure` from (seconds, chunk) pairs; RuntimeError if a request is not whole."""
    first: dict[int, float] = {}
    ended: dict[int, float] = {}
    output: dict[int, list[int]] = {}
    verified: list[int] = []
    for seconds, chunk in arrivals:
        request = chunk.get("index", 0)
        first.setdefault(request, seconds)
        if chunk["meta_info"]["finish_reason"]:
            ended[request] = seconds
            output[request] = list(chunk["output_ids"])
            verified.append(chunk["meta_info"].get("spec_verify_ct") or tokens - 1)
    whole = [len(output.get(request, [])) == tokens for request in range(requests)]
    if not all(whole):
        raise RuntimeError(f"{whole.count(False)} of {requests} requests ended early.")
    decoded_ms = 1e3 * (min(ended.values()) - max(first.values()))
    return {
        "ttft_ms": [1e3 * first[request] for request in range(requests)],
        "tpot_ms": decoded_ms / (tokens - 1),
        "step_ms": decoded_ms / max(verified),
        "output": [output[request] for request in range(requests)],
    }
