from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from carrytool import cli as carry
from doctortool import cli as doctor_cli
from overlaytool import cli

from tests.tool import toy as toys

SMI_HEADING = "| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: {cuda}  |"
MODELS = Path(__file__).parents[1] / "arguments" / "models"
NAMED = ["--attention-backend", "flashinfer_mla_compact", "--model-path", f"{MODELS}/deepseek-v3"]
SERVES = [*NAMED, "--kv-cache-dtype", "fp8_e4m3"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Overlay = Callable[..., Result]
Doctor = Callable[..., dict[str, dict[str, str]]]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.fixture
def toy(tmp_path: Path) -> toys.Toy:
    return toys.make(tmp_path)


@pytest.fixture
def overlay(toy: toys.Toy, capsys: pytest.CaptureFixture[str]) -> Overlay:
    """Runs a verb of the tools on the toy: `overlay("apply", "--tree", folder)`."""

    def run(verb: str, *arguments: object) -> Result:
        given = [str(argument) for argument in arguments]
        if verb == "doctor":
            code = doctor_cli.main(given, toy.repository)
        else:
            main = carry.main if verb in carry.VERBS else cli.main
            code = main([verb, *given], toy.repository)
        return Result(code, *capsys.readouterr())

    return run


def findings(result: Result) -> dict[str, dict[str, str]]:
    """The last finding on each subject."""
    return {line["subject"]: line for line in json.loads(result.out)}


@pytest.fixture
def python(toy: toys.Toy, tmp_path: Path) -> Path:
    """An interpreter that sees the toy's tree and a well-matched torch and FlashInfer alone."""
    requires = "Requires-Dist: torch==2.14.1\nRequires-Dist: flashinfer_python[cu13]==0.7.2\n"
    metadata = f"Name: sglang\nVersion: {toys.RELEASE}\n{requires}"
    files = {f"sglang-{toys.RELEASE}.dist-info/METADATA": metadata}
    toys.write_files(toy.tree, files)
    toys.install(toy, "torch", "2.14.1")
    toys.install(toy, "flashinfer_python", "0.7.2")
    toys.write_files(toy.tree, {"torch/__init__.py": "raise SystemExit('imported')\n"})
    toys.torch_cuda(toy, "'13.0'")
    script = tmp_path / "python"
    # -S hides what is installed beside the tests.
    script.write_text(f'#!/bin/sh\nPYTHONPATH={toy.tree} exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts an nvidia-smi on the path that shows two cards of one kind."""

    def put(capability: str, cuda: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        row = f"NVIDIA H200, {capability}, 580.1, 143771 MiB"
        heading = SMI_HEADING.format(cuda=cuda)
        script = folder / "nvidia-smi"
        script.write_text(
            f'#!/bin/sh\n[ $# = 0 ] && echo "{heading}" && exit\necho "{row}\n{row}"\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return put


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for variable in ("STRATEGY", "BUFFER_MIB"):
        monkeypatch.delenv(f"SGLANG_MLA_COMPACT_{variable}", raising=False)


@pytest.fixture
def doctor(overlay: Overlay, python: Path) -> Doctor:
    def run(*server: str) -> dict[str, dict[str, str]]:
        return findings(overlay("doctor", "--json", "--python", python, "--", *server))

    return run
