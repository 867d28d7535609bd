"""A stand-in for `sglang.Engine` that follows cycles of tokens without a model or a device."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from bench.lookup import answer
from tests.gpu.lookups import TASK


class Engine:
    run_scheduler_process_func = staticmethod(print)

    def __init__(self, **options: Any) -> None:
        if options.get("fails"):
            print("no kernel for this device", flush=True)
            sys.exit(1)
        self.late = options.get("late")
        self.loop = asyncio.new_event_loop()
        self.tokenizer_manager = self
        self.aborted: set[str] = set()
        self.running, self.most = 0, 0
        self.scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def async_generate(self, rid: str, **request: Any) -> AsyncIterator[dict[str, Any]]:
        return self._chunks(rid, request["input_ids"], request["sampling_params"])

    async def _chunks(
        self, rid: str, prompt: list[int], sampling: dict[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        tokens = answer(TASK, prompt[-1], sampling["max_new_tokens"])
        self.running += 1
        self.most = max(self.most, self.running)
        for count in range(1, len(tokens)):
            await asyncio.sleep(0)
            if rid in self.aborted:
                yield self._chunk(tokens[count - 1 : count], "abort")
                break
            if count % sampling["stream_interval"] in (0, 1):
                yield self._chunk(tokens[:count])
        else:
            yield self._chunk(tokens, "length")
        self.running -= 1

    def _chunk(self, tokens: list[int], ended: str = "") -> dict[str, Any]:
        reason = {"type": ended} if ended else None
        about = {"finish_reason": reason, "cached_tokens": self.most}
        return {"output_ids": tokens, "meta_info": about}

    def abort_request(self, rid: str) -> None:
        self.aborted.add(rid)

    def flush_cache(self) -> SimpleNamespace:
        if self.late:
            time.sleep(self.late)
        return SimpleNamespace(success=True)

    def get_server_info(self) -> dict[str, Any]:
        return {"internal_states": [{"device_memory": {"scheduler": self.scheduler.pid}}]}

    def shutdown(self) -> None:
        """Leaves its scheduler, as an engine does that is killed."""
