"""Once a server is ready, it loads no kernel of ours and takes no memory for us."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from bench.draft import make_eagle
from tests.gpu.draft_model import make_target
from tests.gpu.engine_calls import Ask, flush, made
from tests.gpu.lookups import alone, behind, mistakes
from tests.gpu.machine import OVERLAY, tree
from tests.gpu.served import Served, engine, made_once, running
from tests.gpu.test_served_drafts import EAGLE

WATCH = "sglang/srt/utils/triton_load_watch.py"
if not (tree() or Path()).joinpath(WATCH).exists():
    pytest.skip("this release does not watch which kernels are loaded", allow_module_level=True)

FITS, OVERFLOWS = 300, 2000  # tokens of prefixes; a buffer of 1 MiB has 910 rows


@pytest.fixture(scope="module", params=["1", "1024"], ids=["bounded", "whole"])
def server(
    request: pytest.FixtureRequest, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    beside = small_model.with_name
    target = made_once(beside("draft-target"), lambda to: make_target(small_model, to))
    draft = made_once(beside("make_eagle"), make_eagle)
    drafts = engine(target, EAGLE | {"speculative_draft_model_path": str(draft)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_MLA_COMPACT_BUFFER_MIB", request.param)
        with running(tmp_path_factory.mktemp("late"), {"late": ("compact", drafts)}) as served:
            yield served["late"]


def kernels() -> set[str]:
    """The names of all functions of the overlay that Triton compiles."""
    trees = [ast.parse(file.read_text()) for file in OVERLAY.rglob("*.py")]
    functions = [
        node for one in trees for node in ast.walk(one) if isinstance(node, ast.FunctionDef)
    ]
    return {
        one.name for one in functions if any(".jit" in ast.unparse(d) for d in one.decorator_list)
    }


def extends_behind(prefix: int, number: int) -> tuple[Ask, list[Ask]]:
    """A request that leaves its prompt in the cache, and requests that extend behind it."""
    first = alone(prefix, number, 1)
    owns = (20, 200, 150)
    return first, [behind(first.prompt, own, Random(own), 40) for own in owns]


@pytest.mark.parametrize("prefix", [FITS, OVERFLOWS])
def test_extends_and_verifies_load_no_kernel_and_take_no_memory(
    server: Served, prefix: int
) -> None:
    before, held = server.call(made)
    assert held
    server.call(flush)
    first, rest = extends_behind(prefix, prefix)
    assert mistakes([first], server.ask([first])) == []
    answers = [*server.ask(rest[:1]), *server.ask(rest[1:])]
    assert mistakes(rest, answers) == []
    assert all(answer.cached >= prefix - 1 and answer.steps for answer in answers)
    loads, now = server.call(made)
    assert kernels() & set(loads[len(before) :]) == set()
    assert now == held
