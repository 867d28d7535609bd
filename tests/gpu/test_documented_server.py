"""The server that the README starts, and what the pages say to ask it, on a small model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from bench.lookup import answer, prompt
from tests.docs.blocks import blocks
from tests.gpu.lookups import TASK
from tests.gpu.served import PORTS

ROOT = Path(__file__).parents[2]
SECONDS = 240
# The model has no tokenizer, and the card is shared with other tests.
EXTRA = "--skip-tokenizer-init --grammar-backend none --max-total-tokens 65536 --enable-metrics"
TOKENS = 200  # more than the 64 steps from one sample of the counters to the next


def documented(page: str, words: str) -> str:
    """The one command of a page, or of several alike, that holds `words` and names no folder."""
    found = [
        command
        for block in blocks((ROOT / page).read_text())
        for command, _ in block.commands()
        if words in command and "PYTHONPATH" not in command
    ]
    assert found, f"{page} has no command with {words!r}"
    return found[0]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def server(small_model: Path, traces: Path) -> Iterator[str]:
    """Address of the server, once it is well."""
    command = documented("README.md", "sglang.launch_server").replace("MODEL", str(small_model))
    port = next(PORTS)
    _, *arguments = shlex.split(f"{command} {EXTRA} --port {port}")
    environment = {**os.environ, "SGLANG_TORCH_PROFILER_DIR": str(traces)}
    with (traces / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until_well(process, f"http://127.0.0.1:{port}", traces / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_well(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(f"{address}/health_generate", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def post(url: str, body: dict[str, Any]) -> bytes:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120) as response:
        content: bytes = response.read()
    return content


def generate(server: str) -> tuple[list[int], list[int]]:
    """Tokens that the server generates, and the right ones."""
    asked = prompt(TASK, 500, 3)
    sampling = {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True}
    body = {"input_ids": asked, "sampling_params": sampling}
    got = json.loads(post(f"{server}/generate", body))["output_ids"]
    return got, answer(TASK, asked[-1], TOKENS)


def test_the_command_of_the_readme_serves_right_tokens(server: str) -> None:
    got, right = generate(server)
    assert got == right


def test_the_counters_stand_at_the_servers_metrics(server: str) -> None:
    generate(server)
    with urlopen(f"{server}/metrics", timeout=30) as response:
        text = response.read().decode()
    assert re.search(r"^sglang:mla_compact_rows_total\{.*\} [1-9]", text, re.MULTILINE)


def test_a_trace_asked_for_as_documented_shows_no_cast(server: str, traces: Path) -> None:
    command = documented("docs/diagnose.md", "start_profile").replace(
        "http://localhost:30000", server
    )
    subprocess.run(shlex.split(command), check=True, timeout=60)
    generate(server)
    deadline = time.monotonic() + 60
    while not (found := list(traces.rglob("*.trace.json.gz"))) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(2)  # until it is written to its end
    told = subprocess.run([ROOT / "scripts" / "diagnose", found[0], "--json"], capture_output=True)
    assert told.returncode == 0, told.stdout.decode()
