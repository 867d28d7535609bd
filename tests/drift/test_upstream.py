"""What a release, a checkout and an installed tree state about themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from carrytool import upstream
from overlaytool import requirements
from overlaytool.errors import Exit, Refusal

METADATA = b"""\
Name: sglang
Requires-Dist: flashinfer_python[cu13]==0.7.2
Requires-Dist: sglang-kernel (==0.4.10)
Requires-Dist: torch>=2.9; sys_platform == "linux"
Requires-Dist: torch==9.9; extra == "test"
Requires-Dist: torchvision
Requires-Dist: transformers
"""
PYPROJECT = b"""\
[project]
name = "sglang"
dependencies = ["flashinfer_python==0.8.0", "torch==2.15.0", "numpy"]
"""


def test_the_watched_versions_are_read_from_a_wheels_metadata() -> None:
    assert requirements.from_metadata(METADATA) == {
        "flashinfer-python": "==0.7.2",
        "sglang-kernel": "==0.4.10",
        "torch": ">=2.9",
        "transformers": "any",
    }


@pytest.mark.parametrize(
    ("specifier", "version"),
    [("==0.7.2", "0.7.2"), ("== 1.0.post1", "1.0.post1"), (">=1", None), ("==1.*", None),
     ("==1,!=2", None), (None, None)],
)  # fmt: skip
def test_only_one_exact_version_can_be_fetched(specifier: str | None, version: str | None) -> None:
    assert requirements.exact(specifier) == version


def test_a_checkout_states_its_versions_in_pyproject(tmp_path: Path) -> None:
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "python" / "sglang" / "__init__.py").write_text("")
    (tmp_path / "python" / "sglang" / "srt" / "a.py").write_text("A = 1\n")
    (tmp_path / "python" / "pyproject.toml").write_bytes(PYPROJECT)
    found = upstream.of_folder(tmp_path)
    assert found.required == {"flashinfer-python": "==0.8.0", "torch": "==2.15.0"}
    assert found.release is None
    assert found.read("sglang/srt/a.py") == b"A = 1\n"


def test_a_broken_wheel_could_not_be_tried(tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK\3\4 cut off")
    with pytest.raises(Refusal, match="not a readable wheel") as refusal:
        upstream.of_wheel(wheel)
    assert refusal.value.code is Exit.UNTRIED
