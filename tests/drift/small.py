"""A small pin with a contract, and later releases of its upstream, all as wheels on disk."""

from __future__ import annotations

from pathlib import Path

from carrytool import make_lock
from carrytool.uses import PACKAGE

from tests.tool import toy as toys

NEXT = "1.2.4"
MODULE = f"{PACKAGE}backend.py"
SOURCE = """\
from sglang.srt.registry import register

def start(wrapper: Any):
    register('compact')
    wrapper.plan(1)
"""
CONTRACT = """\
[mentioned]
a = false

[holds]
wrapper = ["flashinfer/mla/__init__.py:Wrapper"]
"""
REGISTRY = toys.UPSTREAM[toys.REGISTRY]
CHOICES = toys.UPSTREAM[toys.CHOICES]


def release(version: str, flashinfer: str = "9.1", **files: str) -> dict[str, str]:
    """Files of a release; `registry` and `choices` replace those modules, `moved` is a new one."""
    information = f"sglang-{version}.dist-info"
    tree = {
        "sglang/__init__.py": "",
        "sglang/_version.py": f"__version__ = '{version}'\n",
        toys.REGISTRY: files.get("registry", REGISTRY),
        toys.CHOICES: files.get("choices", CHOICES),
    }
    if "moved" in files:
        tree["sglang/srt/moved.py"] = files["moved"]
    metadata = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
    metadata += f"Requires-Dist: flashinfer_python[cu13]=={flashinfer}\nRequires-Dist: torch==2.0\n"
    return tree | {
        f"{information}/METADATA": metadata,
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }


def make(folder: Path) -> toys.Toy:
    """The pin of 1.2.3, its contract and its FlashInfer."""
    toy = toys.make(folder, release(toys.RELEASE))
    toy.overlay(MODULE, SOURCE)
    (toy.repository / "contract.toml").write_text(CONTRACT)
    flashinfer(toy, "9.1")
    make_lock.write(toy.pin)
    return toy


def flashinfer(toy: toys.Toy, version: str, source: str = "def plan(self, n): ...") -> None:
    """Puts a FlashInfer among the wheels."""
    files = {
        "flashinfer/mla/__init__.py": f"class Wrapper:\n    {source}\n",
        f"flashinfer_python-{version}.dist-info/METADATA": f"Version: {version}\n",
    }
    toys.make_wheel(toy.pin.wheels, version, files, "flashinfer_python")


def publish(toy: toys.Toy, version: str = NEXT, flashinfer: str = "9.1", **files: str) -> Path:
    """Puts a release's wheel among the wheels, where pip may find it."""
    return toys.make_wheel(toy.pin.wheels, version, release(version, flashinfer, **files))
