"""The versions that a release of sglang pins, read from its metadata."""

from __future__ import annotations

import contextlib
import re
import tomllib
from email.parser import BytesParser

from overlaytool.tree import PACKAGE, Tree

WATCHED = ("flashinfer-python", "torch", "sglang-kernel", "sgl-kernel", "triton", "transformers")
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()@]*)")


def of_tree(tree: Tree) -> dict[str, str]:
    """What a tree's sglang pins, from its metadata, or from pyproject.toml in a git checkout."""
    for pattern, read in (
        (f"{PACKAGE}-*.dist-info/METADATA", from_metadata),
        ("pyproject.toml", from_pyproject),
    ):
        for file in sorted(tree.root.glob(pattern)):
            with contextlib.suppress(OSError, ValueError):
                return read(file.read_bytes())
    return {}


def from_metadata(content: bytes) -> dict[str, str]:
    """Watched requirements of a wheel's METADATA, as {name: specifier}."""
    return _watched(BytesParser().parsebytes(content).get_all("Requires-Dist") or [])


def from_pyproject(content: bytes) -> dict[str, str]:
    """The same from a checkout's pyproject.toml."""
    project = tomllib.loads(content.decode()).get("project", {})
    return _watched(project.get("dependencies", []))


def _watched(lines: list[str]) -> dict[str, str]:
    found = {}
    for line in lines:
        match = REQUIREMENT.match(line)
        name = re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""
        if match and name in WATCHED and "extra ==" not in line:
            found[name] = match[2].strip() or "any"
    return found


def exact(specifier: str | None) -> str | None:
    """The version of an `==` specifier, None for any other."""
    match = re.fullmatch(r"==\s*([^,*\s]+)", specifier or "")
    return match[1] if match else None
