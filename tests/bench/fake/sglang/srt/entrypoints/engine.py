"""A stand-in for `sglang.Engine`: answers lookup prompts at once, with no model and no device."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lookup import answer, read_task


class Engine:
    run_scheduler_process_func = staticmethod(print)

    def __init__(self, **options: Any) -> None:
        self.options = options
        print(f"cpus: {sorted(os.sched_getaffinity(0))}", flush=True)
        if os.environ.get("FAKE_FAILS") == options["attention_backend"]:
            raise RuntimeError("no kernel for this device")
        # Like the scheduler: a process that outlives a worker which is killed alone.
        self.scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        if folder := os.environ.get("FAKE_PIDS"):
            Path(folder, str(self.scheduler.pid)).write_text(str(os.getpid()))

    def get_server_info(self) -> dict[str, Any]:
        pool = os.environ.get("FAKE_POOL") or self.options["max_total_tokens"] or 4096
        return {**self.options, "max_total_num_tokens": int(pool)}

    def generate(
        self, input_ids: list[list[int]], sampling_params: dict[str, Any], stream: bool
    ) -> Iterator[dict[str, Any]]:
        if os.environ.get("FAKE_HANGS"):
            self.scheduler.wait()
        task = read_task(Path(self.options["model_path"]))
        assert task and stream
        wrong = self.run_scheduler_process_func is not print
        for reason in (None, "length"):
            for index, prompt in enumerate(input_ids):
                tokens = answer(task, prompt[-1], sampling_params["max_new_tokens"])
                if wrong and index == 0:
                    tokens[1] = 0
                meta = {"finish_reason": reason, **self._verified(len(tokens))}
                yield {"index": index, "output_ids": tokens, "meta_info": meta}

    def _verified(self, tokens: int) -> dict[str, int]:
        if "speculative_algorithm" not in self.options:
            return {}
        return {"spec_verify_ct": (tokens - 1) // int(os.environ["SGLANG_SIMULATE_ACC_LEN"])}

    def start_profile(self, **options: Any) -> None:
        name = f"{options['profile_prefix']}-12.5-TP-0.trace.json.gz"
        self.trace = Path(options["output_dir"], name)

    def stop_profile(self) -> None:
        common = {"ts": 5, "dur": 2, "args": {"correlation": 1}}
        call = common | {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        kernel = common | {"cat": "kernel", "name": "attend"}
        card = [{"name": "stand-in"}]
        replay = call | {"name": "cudaGraphLaunch", "ts": 9, "args": {"correlation": 2}}
        trace = {"deviceProperties": card, "traceEvents": [call, kernel, replay]}
        self.trace.write_bytes(gzip.compress(json.dumps(trace).encode()))

    def flush_cache(self) -> SimpleNamespace:
        return SimpleNamespace(success=True)

    def shutdown(self) -> None:
        self.scheduler.kill()
        self.scheduler.wait()
