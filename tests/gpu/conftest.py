"""GPU tests: marked as such, each starting from the default settings of the backend."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from _pytest.junitxml import xml_key

from tests.gpu import kit, machine

HERE = Path(__file__).parent
VARIABLES = ("SGLANG_MLA_COMPACT_STRATEGY", "SGLANG_MLA_COMPACT_BUFFER_MIB")


@pytest.hookimpl(trylast=True)  # the plugin that writes the results must be there
def pytest_configure(config: pytest.Config) -> None:
    """Note in the results which overlay ran; no fixture can, where xdist's workers run them."""
    results, tree = config.stash.get(xml_key, None), machine.tree()
    if results is not None and tree is not None:
        digest = machine.overlay_digest(tree, machine.release())
        results.add_global_property("overlay", digest)


class WithoutDevice(pytest.Module):
    """Skips a test module unread where there is no GPU: a CPU may lack what it imports."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.skip("needs a CUDA device", allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if torch.cuda.is_available():
        return None
    return WithoutDevice.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather wherever a test does not ask for something else: what is bit-identical to stock."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SGLANG_MLA_COMPACT_STRATEGY", "gather")


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bench model with few layers, which all processes of a session share."""
    from tests.gpu.served import made_once, make_model

    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return made_once(shared / "small-model", make_model)


@pytest.fixture(scope="session", autouse=True)
def running_kit(request: pytest.FixtureRequest) -> kit.Running:
    """Upstream's cases, started before the first test: they take the longest."""
    wanted = any("kit_outcomes" in getattr(i, "fixturenames", ()) for i in request.session.items)
    return kit.start() if wanted else {}


@pytest.fixture(scope="session")
def kit_outcomes(running_kit: kit.Running) -> kit.Outcomes:
    """How each of upstream's cases ended with each backend; kept for the table in the docs."""
    outcomes = kit.collect(running_kit)
    kit.result().write_text(json.dumps(outcomes, indent=1) + "\n")
    return outcomes
