"""Our name resolves as `flashinfer` does in the same tree: one test for each pin, GPU and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doctortool import server
from doctortool.resolver import OFFLINE

from tests.trees import PINS, applied_tree, run_in_tree

NAME = "flashinfer_mla_compact"
HERE = Path(__file__).parent
MODELS = ("deepseek-v2-lite", "deepseek-v3", "glm-4.7-flash", "glm-5", "kimi-k2")
DEVICES = {"SM90": [9, 0], "SM100": [10, 0], "SM120": [12, 0]}
SPECULATIVE = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
SPECULATIVE += " --speculative-num-draft-tokens 4 --speculative-draft-attention-backend @"
FLAGS = {
    "both": "--attention-backend @",
    "fp8_e4m3": "--attention-backend @ --kv-cache-dtype fp8_e4m3",
    "split": "--prefill-attention-backend @ --decode-attention-backend @",
    "decode": "--decode-attention-backend @ --kv-cache-dtype fp8_e4m3",
    "prefill": "--prefill-attention-backend @ --kv-cache-dtype fp8_e4m3",
    "draft": f"--attention-backend @ {SPECULATIVE}",
    "refused": "--attention-backend @ --enable-mis",
}
FIELDS = {
    "both": ["attention_backend"],
    "fp8_e4m3": ["attention_backend"],
    "split": ["prefill_attention_backend", "decode_attention_backend"],
    "decode": ["decode_attention_backend"],
    "prefill": ["prefill_attention_backend"],
    "draft": ["attention_backend", "speculative_draft_attention_backend"],
}
# 0.5.9 reads a Kimi model with code from the model's repository alone, and has no --enable-mis.
LACKING = {"0.5.9": {"kimi-k2", "refused"}}
CASES = [
    (pin, gpu, model)
    for pin in PINS
    for gpu in DEVICES
    for model in MODELS
    if model not in LACKING.get(pin, ())
]
REFUSING = [case for case in CASES if "refused" not in LACKING.get(case[0], ())]

RAW = f"--model-path {HERE}/models/glm-5 --attention-backend {NAME} --kv-cache-dtype fp8_e4m3 "
RAW += "--disaggregation-mode prefill --dsa-prefill-backend trtllm "
RAW += "--cuda-graph-backend-prefill disabled"
# What the doctor says of some runs; 0.5.9 has other names for the flags of RAW.
FINDINGS = {
    f"glm-4.7-flash fp8_e4m3 {NAME}": "nothing in these",
    f"glm-5 both {NAME}": "needs no cast",
    "raw": "nothing in these",
}
DOCTORED = [(pin, run) for pin in PINS for run in FINDINGS if (pin, run) != ("0.5.9", "raw")]


@pytest.fixture(scope="module")
def resolved() -> dict[str, Any]:
    """{pin: {GPU: {"model flags name": answer}}}"""
    trees = {release: str(applied_tree(release)) for release in PINS}
    request = {
        tree: {"devices": DEVICES, "runs": _runs(release)} for release, tree in trees.items()
    }
    run = run_in_tree(None, HERE / "resolve.py", stdin=json.dumps(request), environment=OFFLINE)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    return {release: found[tree] for release, tree in trees.items()}


def _runs(release: str) -> dict[str, list[str]]:
    # Only what is asked here may differ between two resolutions: not the random seed.
    lacking = LACKING.get(release, set())
    runs = {
        f"{model} {label} {name}": _arguments(model, label, name)
        for model in MODELS
        for label in FLAGS
        for name in ("flashinfer", NAME)
        if not {model, label} & lacking
    }
    return {**runs, "raw": RAW.split()}


def _arguments(model: str, flags: str, name: str) -> list[str]:
    given = FLAGS[flags].replace("@", name).split()
    return ["--model-path", str(HERE / "models" / model), *given, "--random-seed", "1"]


@pytest.mark.parametrize(("release", "gpu", "model"), CASES)
@pytest.mark.parametrize("flags", FIELDS)
def test_every_argument_but_the_name_resolves_as_under_flashinfer(
    resolved: dict[str, Any], release: str, gpu: str, model: str, flags: str
) -> None:
    ours, stock = (
        resolved[release][gpu][f"{model} {flags} {name}"]["fields"] for name in (NAME, "flashinfer")
    )
    assert len(stock) > 300
    assert {field: value.replace(NAME, "flashinfer") for field, value in ours.items()} == stock
    assert [ours[field] for field in FIELDS[flags]] == [repr(NAME)] * len(FIELDS[flags])


@pytest.mark.parametrize(("release", "gpu", "model"), CASES)
def test_cached_prefixes_stay_chunked(
    resolved: dict[str, Any], release: str, gpu: str, model: str
) -> None:
    for flags in ("both", "fp8_e4m3", "split", "draft"):
        answer = resolved[release][gpu][f"{model} {flags} {NAME}"]
        assert answer["fields"]["chunked prefix cache"] == "True"


@pytest.mark.parametrize(("release", "gpu", "model"), CASES)
def test_an_fp8_pool_is_kept_and_pages_are_as_small_as_the_model_allows(
    resolved: dict[str, Any], release: str, gpu: str, model: str
) -> None:
    fields = resolved[release][gpu][f"{model} fp8_e4m3 {NAME}"]["fields"]
    assert fields["kv_cache_dtype"] == "'fp8_e4m3'"
    assert fields["page_size"] == ("64" if model == "glm-5" else "1")


@pytest.mark.parametrize(("release", "gpu", "model"), REFUSING)
def test_multi_item_scoring_is_refused(
    resolved: dict[str, Any], release: str, gpu: str, model: str
) -> None:
    assert "Multi-item scoring" in resolved[release][gpu][f"{model} refused {NAME}"]["error"]


@pytest.mark.parametrize("model", MODELS)
def test_prefill_graphs_are_on_for_every_mla_model_in_0_5_23(
    resolved: dict[str, Any], model: str
) -> None:
    for gpu in DEVICES:
        fields = resolved["0.5.23"][gpu][f"{model} fp8_e4m3 {NAME}"]["fields"]
        assert fields["prefill graph"] == "'breakable'"


@pytest.mark.parametrize(("release", "run"), DOCTORED)
def test_the_doctor_reads_each_pin(resolved: dict[str, Any], release: str, run: str) -> None:
    answer = resolved[release]["SM90"][run]["doctor"]
    judged = server.Judged((server.answered(answer),))
    assert FINDINGS[run] in str(next(server.lines(judged, stock=False)))
