"""What runs in the process of a served engine: its start, and what tests ask of it.

sglang is imported where it is used: tests name these functions in processes without it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

FLUSH_SECONDS = 30.0
LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Ask:
    """A request for greedy tokens.

    Attributes:
        prompt: token ids.
        tokens: how many to generate.
        abort_after: abort once that many have come; 0 for never.
        rank: the data-parallel rank that serves it; None leaves that to the engine.
        room: where a prefill and a decode engine meet over it: the port at which the prefill
            engine registers, and a number of the request's own, from 1 up.
    """

    prompt: list[int]
    tokens: int
    abort_after: int = 0
    rank: int | None = None
    room: tuple[int, int] | None = None


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        tokens: generated token ids.
        ended: "length" or "abort".
        cached: prompt tokens that the prefix cache had.
        steps: target verify steps of a speculative engine; 0 for any other.
        loaded: cached tokens that a hierarchical cache loaded from the host's memory.
    """

    tokens: list[int]
    ended: str
    cached: int = 0
    steps: int = 0
    loaded: int = 0


def serve(
    arguments: dict[str, Any], environment: Mapping[str, str], log: Path, connection: Connection
) -> None:
    """Process entry: sends True once the engine is up, then the result of each (function, *args).

    What a function raises is sent as text, and the engine stays. It ends with its parent.
    """
    os.setsid()  # one signal to the group ends the engine's own processes, too
    _redirect(log)
    os.environ.update(environment)
    engine = _start(arguments)
    connection.send((True, None))
    while (call := _received(connection)) is not None:
        function, *rest = call
        try:
            connection.send((True, function(engine, *rest)))
        except Exception:
            connection.send((False, traceback.format_exc()))
    engine.shutdown()


def _redirect(log: Path) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(target, sys.stdout.fileno())
    os.dup2(target, sys.stderr.fileno())


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:  # the parent is gone
        return None


def _start(arguments: dict[str, Any]) -> Any:
    from sglang.srt.entrypoints.engine import Engine

    class ReportingEngine(Engine):  # type: ignore[misc]
        run_scheduler_process_func = staticmethod(run_reporting_scheduler)

    return ReportingEngine(**arguments)


def run_reporting_scheduler(*arguments: Any) -> None:
    """Entry of a scheduler process that adds what tests ask for to its state."""
    import torch
    from sglang.srt.managers import scheduler

    right = scheduler.Scheduler.get_internal_state
    replays, loads = _counted_draft_replays(), _late_loads()

    def get_internal_state(self: Any, request: Any) -> Any:
        output = right(self, request)
        torch.cuda.synchronize()
        output.internal_state["device_memory"] = {
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
        }
        output.internal_state["draft_replays"] = len(replays)
        output.internal_state["late_loads"] = list(loads)
        output.internal_state["held"] = _held()
        return output

    scheduler.Scheduler.get_internal_state = get_internal_state
    scheduler.run_scheduler_process(*arguments)


def _counted_draft_replays() -> list[int]:
    """A list that takes the batch size of each draft decode that replays a graph."""
    from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner

    right = EAGLEDraftCudaGraphRunner.execute
    replays: list[int] = []

    def execute(self: Any, batch: Any) -> Any:
        replays.append(batch.batch_size)
        return right(self, batch)

    EAGLEDraftCudaGraphRunner.execute = execute
    return replays


def _late_loads() -> list[str]:
    """A list that takes the name of each Triton kernel that is loaded once the server is ready.

    They are those for which SGLANG_CRASH_ON_TRITON_LOAD_AFTER_READY=1 ends a server.
    """
    loads: list[str] = []
    try:
        from sglang.srt.utils import triton_load_watch as watch
    except ImportError:
        return loads

    def on_kernel_load(
        module: Any, function: Any, name: str, metadata_group: Any, hash: str
    ) -> None:
        if watch._serving_started:
            loads.append(name)

    watch._on_kernel_load = on_kernel_load
    return loads


def _held() -> list[tuple[int, int]]:
    """Address and bytes of each tensor that compact backends hold."""
    module = sys.modules.get("sglang.srt.layers.attention.flashinfer_mla_compact.backend")
    if module is None:
        return []
    backend = module.FlashInferMLACompactAttnBackend
    readings = [one.readings for one in gc.get_objects() if issubclass(type(one), backend)]
    tensors = (tensor for one in readings for held in one.held().values() for tensor in held)
    return sorted({(tensor.data_ptr(), tensor.nbytes) for tensor in tensors})


def ask(engine: Any, asked: list[Ask], at_once: int = 64) -> list[Answer]:
    """Answers in the order of the requests, of which at most `at_once` are under way."""

    async def all_of_them() -> list[Answer]:
        room = asyncio.Semaphore(at_once)
        return await asyncio.gather(*(_answer(engine, one, room) for one in asked))

    return list(engine.loop.run_until_complete(all_of_them()))


async def _answer(engine: Any, asked: Ask, room: asyncio.Semaphore) -> Answer:
    name = uuid4().hex
    port, number = asked.room or (None, None)
    async with room:
        chunks = await engine.async_generate(
            input_ids=asked.prompt,
            sampling_params=_sampling(asked),
            stream=True,
            rid=name,
            routed_dp_rank=asked.rank,
            bootstrap_host=asked.room and LOCAL,
            bootstrap_port=port,
            bootstrap_room=number,
        )
        tokens: list[int] = []
        about: dict[str, Any] = {}
        async for chunk in chunks:
            about = chunk["meta_info"]
            tokens = max(tokens, list(chunk["output_ids"]), key=len)
            if asked.abort_after and len(tokens) >= asked.abort_after:
                engine.tokenizer_manager.abort_request(name)
    cached, steps = (int(about.get(key, 0)) for key in ("cached_tokens", "spec_verify_ct"))
    loaded = (about.get("cached_tokens_details") or {}).get("host", 0)
    return Answer(tokens, about["finish_reason"]["type"], cached, steps, loaded)


def _sampling(asked: Ask) -> dict[str, Any]:
    return {
        "temperature": 0.0,
        "max_new_tokens": asked.tokens,
        "ignore_eos": True,
        "stream_interval": 1 if asked.abort_after else 1 << 20,
    }


def flush(engine: Any) -> None:
    """Empty the prefix cache and the allocator's; RuntimeError if the engine stays busy."""
    deadline = time.monotonic() + FLUSH_SECONDS
    while not engine.flush_cache().success:  # refused until the last batch is put away
        if time.monotonic() > deadline:
            raise RuntimeError("The engine stays busy and can't flush its cache.")
        time.sleep(0.05)


def device_memory(engine: Any) -> dict[str, int]:
    """Bytes "allocated" and "reserved" by the first scheduler once it is idle, caches empty."""
    flush(engine)
    states = engine.get_server_info()["internal_states"]
    return dict(states[0]["device_memory"])


def draft_replays(engine: Any) -> int:
    """How many draft decodes the first scheduler has replayed from graphs."""
    return int(engine.get_server_info()["internal_states"][0]["draft_replays"])


def made(engine: Any) -> tuple[list[str], list[tuple[int, int]]]:
    """Kernels that the first scheduler has loaded since it is ready, and what its backends hold."""
    state = engine.get_server_info()["internal_states"][0]
    return state["late_loads"], [(address, size) for address, size in state["held"]]


def reload(engine: Any, folder: str) -> tuple[bool, str]:
    """Take the weights of another checkpoint; whether that worked, and sglang's message."""
    flush(engine)  # a scheduler that is still busy dies of it
    success, message, *_ = engine.update_weights_from_disk(folder)
    return bool(success), str(message)


def release(engine: Any) -> None:
    """Give weights and pool back to the device."""
    flush(engine)
    engine.release_memory_occupation()


def resume(engine: Any, folder: str) -> tuple[bool, str]:
    """Take the memory again, and the weights, which releasing has lost."""
    engine.resume_memory_occupation()
    return reload(engine, folder)
