"""Every program of sglang that takes server arguments takes the name, by all four flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trees import PINS, applied_tree, run_in_tree

HERE = Path(__file__).parent
NAME = "flashinfer_mla_compact"
FLAGS = (
    "--attention-backend",
    "--prefill-attention-backend",
    "--decode-attention-backend",
    "--speculative-draft-attention-backend",
)
MODEL = ("--model-path", str(HERE / "models" / "deepseek-v2-lite"))
PROGRAMS = {
    "python -m sglang.launch_server": ["sglang.launch_server"],
    "sglang serve": ["sglang.cli.main:main", "serve", "--model-type", "llm"],
    "python -m sglang.benchmark.one_batch": ["sglang.benchmark.one_batch"],
    "python -m sglang.benchmark.one_batch_server": ["sglang.benchmark.one_batch_server"],
    "python -m sglang.benchmark.offline_throughput": ["sglang.benchmark.offline_throughput"],
}
# What 0.5.9 has; its `sglang serve` needs the packages of the diffusion models to start.
EARLIER = {
    "python -m sglang.launch_server": ["sglang.launch_server"],
    "python -m sglang.bench_one_batch": ["sglang.bench_one_batch"],
    "python -m sglang.bench_one_batch_server": ["sglang.bench_one_batch_server"],
    "python -m sglang.bench_offline_throughput": ["sglang.bench_offline_throughput"],
}
STOP = "--no-such-option"

Answers = dict[str, dict[str, tuple[int, str]]]


def programs(release: str) -> dict[str, list[str]]:
    return EARLIER if release == "0.5.9" else PROGRAMS


CASES = [(release, program) for release in PINS for program in programs(release)]


def command(program: list[str], name: str) -> list[str]:
    return [*program, *MODEL, *(part for flag in FLAGS for part in (flag, name)), STOP]


def commands(release: str) -> dict[str, list[str]]:
    commands = {label: command(program, NAME) for label, program in programs(release).items()}
    commands["unknown"] = command(["sglang.launch_server"], "compact")
    commands["Engine"] = ["Engine", MODEL[1], NAME]
    return commands


@pytest.fixture(scope="module")
def answers() -> Answers:
    trees = {release: str(applied_tree(release)) for release in PINS}
    request = {tree: commands(release) for release, tree in trees.items()}
    run = run_in_tree(None, HERE / "entry_points.py", stdin=json.dumps(request))
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    return {release: found[tree] for release, tree in trees.items()}


@pytest.mark.parametrize(("release", "program"), CASES)
def test_a_program_takes_the_name(answers: Answers, release: str, program: str) -> None:
    code, text = answers[release][program]
    assert f"unrecognized arguments: {STOP}" in text
    assert code == 2


def test_another_name_is_an_invalid_choice(answers: Answers, release: str) -> None:
    code, text = answers[release]["unknown"]
    assert "invalid choice: 'compact'" in text
    assert code == 2


def test_the_engine_takes_the_name_in_all_four_arguments(answers: Answers, release: str) -> None:
    code, text = answers[release]["Engine"]
    assert str([NAME] * len(FLAGS)) in text
    assert code == 0
