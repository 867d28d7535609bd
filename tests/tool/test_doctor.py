"""The doctor on installations that are well, incomplete, mixed up and broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from overlaytool import serving

from tests.tool.conftest import Overlay, Result
from tests.tool.toy import REGISTRY, RELEASE, Toy, write_files

SMI_HEADING = "| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: {cuda}  |"
NAME = "flashinfer_mla_compact"
SERVES = ["--attention-backend", NAME, "--kv-cache-dtype", "fp8_e4m3"]

Doctor = Callable[..., dict[str, dict[str, str]]]


@pytest.fixture
def python(toy: Toy, tmp_path: Path) -> Path:
    """An interpreter that sees the toy's tree and a well-matched torch and FlashInfer alone."""
    requires = "Requires-Dist: torch==2.14.1\nRequires-Dist: flashinfer_python[cu13]==0.7.2\n"
    files = {
        f"sglang-{RELEASE}.dist-info/METADATA": f"Name: sglang\nVersion: {RELEASE}\n{requires}"
    }
    write_files(toy.tree, files)
    install(toy, "torch", "2.14.1")
    install(toy, "flashinfer_python", "0.7.2")
    write_files(toy.tree, {"torch/__init__.py": "raise SystemExit('imported')\n"})
    torch_cuda(toy, "'13.0'")
    script = tmp_path / "python"
    # -S hides what is installed beside the tests.
    script.write_text(f'#!/bin/sh\nPYTHONPATH={toy.tree} exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script


def install(toy: Toy, name: str, version: str) -> None:
    title = name.replace("_", "-")
    metadata = {f"{name}-{version}.dist-info/METADATA": f"Name: {title}\nVersion: {version}\n"}
    write_files(toy.tree, metadata)


def uninstall(toy: Toy, name: str) -> None:
    for file in toy.tree.glob(f"{name}-*.dist-info/METADATA"):
        file.unlink()
        file.parent.rmdir()


def torch_cuda(toy: Toy, value: str) -> None:
    write_files(toy.tree, {"torch/version.py": f"cuda: Optional[str] = {value}\n"})


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


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for variable in ("STRATEGY", "BUFFER_MIB"):
        monkeypatch.delenv(f"SGLANG_MLA_COMPACT_{variable}", raising=False)


def findings(result: Result) -> dict[str, dict[str, str]]:
    """The last finding on each subject."""
    return {line["subject"]: line for line in json.loads(result.out)}


@pytest.fixture
def doctor(overlay: Overlay, python: Path) -> Doctor:
    def run(*server: str) -> dict[str, dict[str, str]]:
        return findings(overlay("doctor", "--json", "--python", python, "--", *server))

    return run


def test_a_well_installation_exits_with_zero(
    toy: Toy, overlay: Overlay, python: Path, card: Callable[[str, str], None]
) -> None:
    card("9.0", "13.0")
    overlay("apply", "--tree", toy.tree)
    result = overlay("doctor", "--python", python, "--", *SERVES, "--max-total-tokens", "495552")
    assert result.code == 0, result.out
    assert "mend" not in result.out
    assert f"ok    overlay            applied, pin {RELEASE}" in result.out
    assert "2 x NVIDIA H200, compute capability 9.0, 143771 MiB, driver 580.1" in result.out
    assert "direct: faster than gather" in result.out


def test_without_a_gpu_the_rest_is_judged(toy: Toy, overlay: Overlay, python: Path) -> None:
    overlay("apply", "--tree", toy.tree)
    result = overlay("doctor", "--python", python)
    assert result.code == 0
    assert "note  gpu" in result.out


def test_an_overlay_that_is_not_applied_is_to_be_applied(
    overlay: Overlay, python: Path, doctor: Doctor
) -> None:
    line = doctor()["overlay"]
    assert (line["mark"], line["found"]) == ("mend", "not applied")
    assert line["remedy"] == f"run scripts/overlay apply --pin {RELEASE} --python {python}"
    assert overlay("doctor", "--python", python).code == 1


def test_a_foreign_file_is_named(toy: Toy, doctor: Doctor) -> None:
    toy.file(REGISTRY).write_text("edited = True\n")
    line = doctor()["overlay"]
    assert REGISTRY in line["found"]
    assert "--from-wheel" in line["remedy"]


def test_another_release_is_told_from_a_broken_one(toy: Toy, doctor: Doctor) -> None:
    toy.file("sglang/_version.py").write_text("__version__ = '9.9.9'\n")
    line = doctor()["overlay"]
    assert "states sglang 9.9.9" in line["found"]
    assert "--pin" in line["remedy"]


def test_sglang_uninstalled_under_the_overlay_is_recognised(
    toy: Toy, overlay: Overlay, doctor: Doctor
) -> None:
    overlay("apply", "--tree", toy.tree)
    for path in ("sglang/__init__.py", "sglang/_version.py", REGISTRY, "sglang/srt/choices.py"):
        toy.file(path).unlink()
    assert "uninstalled from under the overlay" in doctor()["overlay"]["found"]


def test_no_sglang_is_said(toy: Toy, doctor: Doctor) -> None:
    toy.file("sglang").rename(toy.tree / "elsewhere")
    line = doctor()["sglang"]
    assert (line["mark"], line["found"]) == ("mend", "not installed")
    assert f"sglang=={RELEASE}" in line["remedy"]


@pytest.mark.parametrize(("version", "mark"), [("0.7.2+cu130", "ok"), ("0.6.14", "mend")])
def test_flashinfer_is_compared_with_sglangs_pin(
    toy: Toy, doctor: Doctor, version: str, mark: str
) -> None:
    uninstall(toy, "flashinfer_python")
    install(toy, "flashinfer_python", version)
    line = doctor()["flashinfer-python"]
    assert line["mark"] == mark
    assert version in line["found"] and "0.7.2" in line["found"]


def test_missing_torch_and_unreadable_metadata_are_survived(toy: Toy, doctor: Doctor) -> None:
    uninstall(toy, "torch")
    write_files(toy.tree, {"torch/version.py": "cuda =\n"})
    toy.file("flashinfer_python-0.7.2.dist-info/METADATA").write_bytes(b"\xff\xfe\x00")
    found = doctor()
    assert found["torch"]["remedy"] == "install torch==2.14.1"
    assert found["flashinfer-python"]["mark"] == "mend"
    assert "cuda" not in found


def test_a_git_checkout_pins_through_its_pyproject(toy: Toy, doctor: Doctor) -> None:
    toy.file(f"sglang-{RELEASE}.dist-info/METADATA").unlink()
    text = '[project]\ndependencies = ["torch==2.0.0"]\n'
    write_files(toy.tree, {"pyproject.toml": text})
    assert doctor()["torch"]["remedy"] == "install torch==2.0.0"


def test_flashinfer_parts_of_another_version_are_found(toy: Toy, doctor: Doctor) -> None:
    install(toy, "flashinfer_cubin", "0.7.1")
    assert "0.7.1 beside flashinfer-python 0.7.2" in doctor()["flashinfer-cubin"]["found"]


@pytest.mark.parametrize(
    ("torch", "driver", "mark"),
    [("'13.1'", "13.0", "ok"), ("'12.8'", "13.0", "ok"), ("'13.0'", "12.8", "mend")],
)
def test_the_drivers_cuda_must_run_torchs(
    toy: Toy,
    doctor: Doctor,
    card: Callable[[str, str], None],
    torch: str,
    driver: str,
    mark: str,
) -> None:
    card("9.0", driver)
    torch_cuda(toy, torch)
    assert doctor()["cuda"]["mark"] == mark


def test_a_cpu_build_of_torch_is_to_be_replaced(toy: Toy, doctor: Doctor) -> None:
    torch_cuda(toy, "None")
    assert doctor()["cuda"]["remedy"] == "install torch==2.14.1 built for CUDA"


def test_an_old_card_is_to_be_replaced(doctor: Doctor, card: Callable[[str, str], None]) -> None:
    card("7.5", "13.0")
    assert doctor()["gpu"]["mark"] == "mend"


def test_an_interpreter_that_does_not_run_leaves_the_rest(overlay: Overlay) -> None:
    result = overlay("doctor", "--json", "--python", "/no/such/python")
    assert result.code == 1
    assert set(findings(result)) == {"python", "gpu", "strategy"}


def test_the_strategy_follows_card_pool_and_settings(
    doctor: Doctor, card: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor()["strategy"]["found"].startswith("gather for a pool of at most")
    assert doctor("--max-total-tokens", "5000000")["strategy"]["found"].startswith("direct: ")
    card("9.0", "13.0")
    assert "kernels.json" in doctor()["strategy"]["found"]
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "direct")
    assert doctor()["strategy"]["found"].startswith("direct for a pool of at most")
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "stock")
    assert doctor()["strategy"]["mark"] == "note"
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "fast")
    line = doctor()["strategy"]
    assert line["mark"] == "mend" and line["remedy"]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--dcp-size", "2"], "--dcp-size 1"),
        (["--decode-context-parallel-size=2"], "--dcp-size 1"),
        (["--enable-unified-memory"], "--enable-unified-memory"),
        (["--enable-pdmux"], "--enable-pdmux"),
        (["--kv-cache-dtype", "fp4_e2m1"], "--kv-cache-dtype"),
        (["--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "4"], "topk 1"),
        (["--speculative-algorithm", "NGRAM"], "bfs-breadth 1"),
    ],
)
def test_refused_arguments_are_named_with_their_remedy(
    doctor: Doctor, arguments: list[str], remedy: str
) -> None:
    line = doctor(*SERVES, *arguments)["server"]
    assert line["mark"] == "mend"
    assert remedy in line["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--page-size", "64", "--tp", "8", "--mem-fraction-static=0.9", "--trust-remote-code"],
        ["--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1"],
        ["--speculative-algorithm", "NGRAM", "--speculative-ngram-max-bfs-breadth", "1"],
        ["--kv-cache-dtype", "fp8_e5m2"],
    ],
)
def test_served_arguments_are_well(doctor: Doctor, arguments: list[str]) -> None:
    assert doctor(*SERVES, *arguments)["server"]["mark"] == "ok"


def test_a_bf16_pool_is_said_to_be_stock(doctor: Doctor) -> None:
    line = doctor("--attention-backend", NAME)["server"]
    assert line["mark"] == "note" and "stock" in line["found"]


def test_a_server_with_another_backend_is_told_the_flag(overlay: Overlay, python: Path) -> None:
    result = overlay("doctor", "--python", python, "--", "--kv-cache-dtype", "fp8_e4m3")
    assert f"add --attention-backend {NAME}" in result.out


def config(folder: Path, **fields: Any) -> str:
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


def test_a_models_config_tells_its_head_dims(doctor: Doctor, tmp_path: Path) -> None:
    model = config(tmp_path, kv_lora_rank=256, qk_rope_head_dim=32)
    line = doctor(*SERVES, "--model-path", model)["server"]
    assert "256 + 32" in line["found"]
    nested = config(tmp_path, text_config={"kv_lora_rank": 512, "qk_rope_head_dim": 0})
    assert "512 + 0" in doctor(*SERVES, "--model", nested)["server"]["found"]


def test_a_model_that_is_no_folder_is_assumed_and_said(doctor: Doctor) -> None:
    found = doctor(*SERVES, "--model-path", "someone/some-model")
    assert found["model"]["mark"] == "note"
    assert found["server"]["mark"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["--cuda-graph-backend-prefill", "disabled"], ["656 bytes"]),
        (["--dsa-prefill-backend", "trtllm", "--dsa-decode-backend", "trtllm"], ["breakable"]),
        (["--dsa-decode-backend", "trtllm", "--disable-prefill-cuda-graph"], []),
    ],
)
def test_a_dsa_model_needs_raw_rows_and_no_prefill_graph(
    overlay: Overlay, python: Path, tmp_path: Path, arguments: list[str], refused: list[str]
) -> None:
    dims = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    model = config(tmp_path, index_topk=2048, **dims)
    result = overlay(
        "doctor", "--json", "--python", python, "--", *SERVES, "--model-path", model, *arguments
    )
    server = [line for line in json.loads(result.out) if line["subject"] == "server"]
    mended = [line["found"] for line in server if line["mark"] == "mend"]
    assert len(mended) == len(refused)
    assert all(words in found for words, found in zip(refused, mended, strict=True))
    assert any("sparse attention" in line["found"] for line in server)


@pytest.mark.parametrize(("capability", "raw"), [("9.0", False), ("10.0", True)])
def test_a_dsa_models_default_rows_depend_on_the_card(
    overlay: Overlay,
    python: Path,
    card: Callable[[str, str], None],
    tmp_path: Path,
    capability: str,
    raw: bool,
) -> None:
    card(capability, "13.0")
    model = config(tmp_path, index_topk=2048)
    arguments = [*SERVES, "--model-path", model, "--disable-prefill-cuda-graph"]
    result = overlay("doctor", "--python", python, "--", *arguments)
    assert ("656 bytes" not in result.out) is raw


@pytest.mark.parametrize(
    ("release", "arguments", "graph"),
    [
        ("0.5.9", [], "disabled"),
        ("0.5.9", ["--enable-piecewise-cuda-graph"], "tc_piecewise"),
        ("0.5.17", [], "breakable"),
        ("0.5.23", ["--cuda-graph-backend-prefill", "full"], "full"),
        ("0.5.23", ["--disable-prefill-cuda-graph"], "disabled"),
    ],
)
def test_the_prefill_graph_by_default_depends_on_the_release(
    release: str, arguments: list[str], graph: str
) -> None:
    support = serving.load_support()
    facts = serving.facts(serving.parse(arguments), support, None, release)
    assert facts.prefill_graph == graph


def test_a_wrong_value_is_a_usage_error(overlay: Overlay, python: Path) -> None:
    result = overlay("doctor", "--python", python, "--", "--dcp-size", "two")
    assert result.code == 2
    assert "--dcp-size" in result.err and len(result.err.splitlines()) == 1


def test_the_backends_own_module_is_asked() -> None:
    support = serving.load_support()
    assert support.NAME == NAME
    assert "torch" not in vars(support)
