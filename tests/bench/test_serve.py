"""`bench.serve` with a stand-in engine: records, resuming, failures, interruption, comparison."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.bench.serving import PYTHON, ROOT, environment


def command(*arguments: object) -> list[str]:
    return [PYTHON, "-m", "bench.serve", *map(str, arguments)]


def serve(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(**more), cwd=ROOT, text=True, capture_output=True
    )


def options(model: Path, *setups: str) -> list[object]:
    small = ["--loads", "1x100", "2x120", "--repeats", 2, "--tokens", 4]
    return ["run", "--model", model, "--out", model / "out.json", "--setups", *setups, *small]


def records(model: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((model / "out.json").read_text())["records"]
    return found


@pytest.mark.parametrize("order", [[], ["--interleave"]])
def test_right_tokens_are_equal_and_a_wrong_row_is_seen(model: Path, order: list[str]) -> None:
    done = serve(*options(model, "stock", "compact", "wrong-row"), *order)
    assert done.returncode == 0, done.stderr
    assert len(records(model)) == 6
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[-1] for row in rows if row[1] == "compact"] == ["equal", "equal"]
    assert [row[-2:] for row in rows if row[1] == "wrong-row"] == [["token", "1"]] * 2
    assert [r["right_requests"] for r in records(model) if r["setup"] == "stock"] == [1, 2]


def test_turns_go_to_and_fro(model: Path) -> None:
    done = serve(*options(model, "stock", "compact"), "--interleave")
    turns = [line.split()[0] for line in done.stderr.splitlines() if " 1x100: " in line]
    assert turns == ["compact", "stock", "stock", "compact", "compact", "stock"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_engines_that_are_up_at_once_run_on_cpus_of_their_own(model: Path, tmp_path: Path) -> None:
    done = serve(*options(model, "stock", "compact"), "--interleave", "--logs", tmp_path)
    assert done.returncode == 0, done.stderr
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("stock", "compact")]
    told = [line for log in logs for line in log.splitlines() if line.startswith("cpus: ")]
    one, other = [set(json.loads(line.removeprefix("cpus: "))) for line in told]
    assert one
    assert other
    assert not one & other


def test_a_stopped_run_continues_with_what_it_lacks(model: Path) -> None:
    serve(*options(model, "stock", "compact"))
    content = json.loads((model / "out.json").read_text())
    kept = content["records"].pop(0)
    content["records"][0]["tpot_ms"] = 123.0
    (model / "out.json").write_text(json.dumps(content))
    done = serve(*options(model, "stock", "compact"))
    assert "compact" not in done.stderr
    assert 123.0 in [record["tpot_ms"] for record in records(model)]
    assert (kept["setup"], kept["load"]) in [(r["setup"], r["load"]) for r in records(model)]


def test_each_engine_leaves_a_trace_where_one_is_asked_for(model: Path) -> None:
    done = serve(*options(model, "stock", "compact"), "--trace", model / "traces")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (model / "traces").iterdir())
    assert names == [f"{name}-12.5-TP-0.trace.json.gz" for name in ("compact", "stock")]


def test_results_of_other_options_are_not_mixed(model: Path) -> None:
    serve(*options(model, "stock"))
    before = (model / "out.json").read_text()
    done = serve(*options(model, "stock"), "--pool", 1000)
    assert done.returncode == 2
    assert "holds another run" in done.stderr
    assert (model / "out.json").read_text() == before


@pytest.mark.parametrize("order", [[], ["--interleave"]])
def test_an_engine_that_fails_is_named_with_its_log_and_the_others_measured(
    model: Path, order: list[str]
) -> None:
    done = serve(*options(model, "triton", "stock"), *order, FAKE_FAILS="triton")
    assert done.returncode == 1
    assert "triton: RuntimeError: no kernel for this device" in done.stderr
    assert "RuntimeError" in (model / "logs" / "triton.log").read_text()
    assert [record["setup"] for record in records(model)] == ["stock", "stock"]


def test_a_pool_smaller_than_asked_is_not_measured(model: Path) -> None:
    done = serve(*options(model, "stock"), FAKE_POOL="4000")
    assert done.returncode == 1
    assert "stock: the pool holds 4000 tokens, not 495552" in done.stderr
    assert records(model) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_leaves_no_process(model: Path, number: signal.Signals) -> None:
    pids = model / "pids"
    pids.mkdir()
    variables = environment(FAKE_HANGS="1", FAKE_PIDS=str(pids))
    running = subprocess.Popen(
        command(*options(model, "stock")), env=variables, cwd=ROOT, preexec_fn=heed_interrupts
    )
    while not (found := list(pids.glob("*"))):
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait(30) == 130
    for process in (found[0].name, found[0].read_text()):
        assert ends(process)


def ends(process: str) -> bool:
    """Whether it is gone within some seconds: a busy host takes its time to end a killed one."""
    for _ in range(200):
        try:
            if "zombie" in status(process):
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def heed_interrupts() -> None:
    """A background job's children ignore SIGINT, unless told otherwise before they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def status(process: str) -> str:
    return Path("/proc", process, "status").read_text()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--accept", 5], "give 1 to 4 tokens a step"),
        (["--accept", 3, "--tokens", 63], "one more than a multiple of --accept 3"),
        (["--accept", 3, "--tokens", 64], "make it with python -m bench.draft"),
    ],
)
def test_drafts_that_cannot_be_served_are_refused(
    model: Path, more: list[object], sentence: str
) -> None:
    done = serve(*options(model, "stock"), *more)
    assert (done.returncode, sentence in done.stderr.splitlines()[-1]) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--model", "nowhere", "--out", "x.json"], "has no config.json"),
        (["run", "--model", "{model}", "--out", "x.json", "--loads", "8192"], "BATCHxTOKENS"),
        (["run", "--model", "{model}", "--out", "x.json", "--tokens", "1"], "must be 2 or more"),
        (["run", "--model", "{model}", "--out", "{model}/config.json"], "can't be read as results"),
        (["compare", "nowhere.json"], "can't be read as results"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    model: Path, arguments: list[str], sentence: str
) -> None:
    done = serve(*(argument.format(model=model) for argument in arguments))
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_compare_tells_different_tokens_and_unseen_faults(model: Path) -> None:
    serve(*options(model, "stock", "compact", "wrong-row"))
    content = json.loads((model / "out.json").read_text())
    by = {(r["setup"], r["load"]): r for r in content["records"]}
    by["compact", "2x120"]["output"][1][2] += 1
    by["wrong-row", "1x100"]["output"] = by["stock", "1x100"]["output"]
    (model / "out.json").write_text(json.dumps(content))
    done = serve("compare", model / "out.json")
    assert done.returncode == 1
    assert "differ at request 1, token 2" in done.stdout
    assert "WRONG ROW UNSEEN" in done.stdout
