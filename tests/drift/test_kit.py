"""The cases that GPU runs take from upstream's kit are there in each pin, by their source alone."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from overlaytool import fetch
from overlaytool.pin import REPOSITORY

from tests.gpu.kit_cases import CASES, KIT, METHODS
from tests.trees import PINS, wheel

# Upstream has no case of that name: it is made from another one.
MADE_HERE = "verify"


@cache
def parsed(release: str, module: str) -> ast.Module:
    source = fetch.member(wheel(release), f"{module.replace('.', '/')}.py")
    assert source is not None, f"sglang {release} has no {module}"
    return ast.parse(source)


def has_kit(release: str) -> bool:
    return f"{KIT.replace('.', '/')}/__init__.py" in fetch.members(wheel(release))


@pytest.fixture(params=[pin for pin in PINS if has_kit(pin)])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_default_release_has_the_kit() -> None:
    assert has_kit((REPOSITORY / "patches" / "default").read_text().strip())


def test_each_function_takes_the_arguments_of_its_cases(release: str) -> None:
    for name, ((module, function), _, arguments) in CASES.items():
        found = [
            node
            for node in parsed(release, module).body
            if isinstance(node, ast.FunctionDef) and node.name == function
        ]
        assert len(found) == 1, f"{name}: {module} has no {function}"
        taken = {argument.arg for argument in found[0].args.kwonlyargs}
        assert {"dtype", "kv_lora_rank", "qk_rope_head_dim", *arguments} <= taken, name


def test_each_case_is_one_of_upstreams(release: str) -> None:
    texts = {
        node.value
        for node in ast.walk(parsed(release, METHODS))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {case for _, case, _ in CASES.values()} - {MADE_HERE} - texts == set()
