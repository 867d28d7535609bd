"""The doctor on installations that are well, incomplete, mixed up and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tool.conftest import SERVES, Doctor, Overlay, findings
from tests.tool.toy import REGISTRY, RELEASE, Toy, install, torch_cuda, uninstall, write_files

pytestmark = pytest.mark.usefixtures("no_card")


def test_a_well_installation_exits_with_zero(
    toy: Toy, overlay: Overlay, python: Path, card: Callable[[str, str], None]
) -> None:
    card("9.0", "13.0")
    overlay("apply", "--tree", toy.tree)
    result = overlay("doctor", "--python", python, "--", *SERVES, "--max-total-tokens", "495552")
    assert result.code == 0, result.out
    assert "fix" not in result.out
    assert f"ok    overlay            applied, pin {RELEASE}" in result.out
    assert "2 x NVIDIA H200, compute capability 9.0, 143771 MiB, driver 580.1" in result.out
    assert "query rows a request, faster than gather" in result.out


def test_without_a_gpu_the_rest_is_judged(toy: Toy, overlay: Overlay, python: Path) -> None:
    overlay("apply", "--tree", toy.tree)
    result = overlay("doctor", "--python", python)
    assert result.code == 0
    assert "note  gpu" in result.out


def test_an_overlay_that_is_not_applied_is_to_be_applied(
    overlay: Overlay, python: Path, doctor: Doctor
) -> None:
    line = doctor()["overlay"]
    assert (line["mark"], line["found"]) == ("fix", "not applied")
    assert line["remedy"] == f"run scripts/overlay apply --pin {RELEASE} --python {python}"
    assert overlay("doctor", "--python", python).code == 1


def test_a_foreign_file_is_named(toy: Toy, doctor: Doctor) -> None:
    toy.file(REGISTRY).write_text("edited = True\n")
    line = doctor()["overlay"]
    assert REGISTRY in line["found"]
    assert "--from-wheel" in line["remedy"]


def test_another_release_is_told_from_a_broken_one(toy: Toy, doctor: Doctor) -> None:
    toy.file("sglang/_version.py").write_text("__version__ = '9.9.9'\n")
    assert doctor()["overlay"]["found"] == "not applied"
    toy.file("sglang/srt/choices.py").write_text("of another release\n")
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


def test_nothing_is_to_be_taken_off_where_nothing_is_left(
    toy: Toy, overlay: Overlay, doctor: Doctor
) -> None:
    overlay("apply", "--tree", toy.tree)
    for path in ("sglang/__init__.py", "sglang/_version.py", REGISTRY, "sglang/srt/choices.py"):
        toy.file(path).unlink()
    assert "unapply" in doctor()["overlay"]["remedy"]
    overlay("unapply", "--tree", toy.tree)
    toy.file("sglang/srt").mkdir(parents=True, exist_ok=True)
    assert doctor()["overlay"]["remedy"] == f"install sglang=={RELEASE} again"


def test_an_old_python_is_told_so_and_nothing_else_of_it(overlay: Overlay, tmp_path: Path) -> None:
    script = tmp_path / "old"
    answer = '{"python": "3.10.14", "versions": {}, "torch_cuda": null}'
    script.write_text(f"#!/bin/sh\necho '{answer}'\n")
    script.chmod(0o755)
    found = findings(overlay("doctor", "--json", "--python", script))
    assert found["python"]["mark"] == "fix" and "3.11" in found["python"]["remedy"]
    assert "sglang" not in found


def test_no_sglang_is_said(toy: Toy, doctor: Doctor) -> None:
    toy.file("sglang").rename(toy.tree / "elsewhere")
    line = doctor()["sglang"]
    assert (line["mark"], line["found"]) == ("fix", "not installed")
    assert f"sglang=={RELEASE}" in line["remedy"]


@pytest.mark.parametrize(("version", "mark"), [("0.7.2+cu130", "ok"), ("0.6.14", "fix")])
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
    assert found["flashinfer-python"]["mark"] == "fix"
    assert "cuda" not in found


def test_a_git_checkout_pins_through_its_pyproject(toy: Toy, doctor: Doctor) -> None:
    toy.file(f"sglang-{RELEASE}.dist-info/METADATA").unlink()
    text = '[project]\ndependencies = ["torch==2.0.0"]\n'
    write_files(toy.tree, {"pyproject.toml": text})
    assert doctor()["torch"]["remedy"] == "install torch==2.0.0"


def test_flashinfer_parts_of_another_version_are_found(toy: Toy, doctor: Doctor) -> None:
    install(toy, "flashinfer_cubin", "0.7.1")
    assert "0.7.1 next to flashinfer-python 0.7.2" in doctor()["flashinfer-cubin"]["found"]


@pytest.mark.parametrize(
    ("torch", "driver", "mark"),
    [("'13.1'", "13.0", "ok"), ("'12.8'", "13.0", "ok"), ("'13.0'", "12.8", "fix")],
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


def test_torch_is_to_be_installed_once(
    toy: Toy, overlay: Overlay, python: Path, card: Callable[[str, str], None]
) -> None:
    card("9.0", "13.0")
    uninstall(toy, "torch")
    install(toy, "torch", "2.13.0+cpu")
    torch_cuda(toy, "None")
    lines = json.loads(overlay("doctor", "--json", "--python", python).out)
    remedies = [line["remedy"] for line in lines if "install torch" in line["remedy"]]
    assert remedies == ["install torch==2.14.1 built for CUDA"]


def test_a_card_that_states_no_capability_is_not_judged(
    doctor: Doctor, card: Callable[[str, str], None]
) -> None:
    card("[N/A]", "13.0")
    found = doctor(*SERVES)
    assert (found["gpu"]["mark"], "--capability" in found["gpu"]["found"]) == ("note", True)
    assert found["strategy"]["found"].endswith("none is seen here")


@pytest.mark.parametrize(("named", "mark"), [("9.0", "ok"), ("7.5", "fix")])
def test_a_card_can_be_named(overlay: Overlay, python: Path, named: str, mark: str) -> None:
    found = findings(overlay("doctor", "--json", "--python", python, "--capability", named))
    assert found["gpu"]["mark"] == mark and "as named" in found["gpu"]["found"]
    assert "none is seen here" not in found["strategy"]["found"]


@pytest.mark.parametrize("named", ["H200", "9", "-1.0"])
def test_a_card_that_is_named_badly_is_refused(overlay: Overlay, python: Path, named: str) -> None:
    result = overlay("doctor", "--python", python, f"--capability={named}")
    assert result.code == 2
    assert named in result.err and len(result.err.splitlines()) == 1


def test_an_old_card_is_to_be_replaced(doctor: Doctor, card: Callable[[str, str], None]) -> None:
    card("7.5", "13.0")
    assert doctor()["gpu"]["mark"] == "fix"


def test_an_interpreter_that_does_not_run_leaves_the_rest(overlay: Overlay) -> None:
    result = overlay("doctor", "--json", "--python", "/no/such/python")
    assert result.code == 1
    assert set(findings(result)) == {"python", "gpu", "strategy"}


def test_the_strategy_follows_card_pool_and_settings(
    doctor: Doctor, card: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor()["strategy"]["found"].endswith("none is seen here")
    assert doctor("--max-total-tokens", "5000000")["strategy"]["found"].startswith("direct: ")
    card("9.0", "13.0")
    assert "kernels.json" in doctor()["strategy"]["found"]
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "direct")
    assert doctor()["strategy"]["found"].startswith("direct for a pool of at most")
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "stock")
    assert doctor()["strategy"]["mark"] == "note"
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "fast")
    line = doctor()["strategy"]
    assert line["mark"] == "fix" and line["remedy"]
