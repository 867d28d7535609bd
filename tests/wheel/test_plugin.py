"""A server under the installed wheel: served by the plugin, stopped in one sentence, or as ever."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from overlaytool import fetch, requirements
from overlaytool.pin import REPOSITORY, find

from tests.arguments.test_entry_points import FLAGS, PROGRAMS, STOP, command
from tests.trees import PINS, applied_tree, pristine_tree, run_in_tree, wheel
from tests.wheel.conftest import Installed

NAME = "flashinfer_mla_compact"
OURS = f"sglang/srt/layers/attention/{NAME}"
DOOR = [pin for pin in PINS if pin != "0.5.9"]  # which loads no plugins
DEFAULT = find(REPOSITORY, None).release
PROGRAM = REPOSITORY / "scripts" / "overlaytool" / "hookpoints.py"
MODEL = REPOSITORY / "tests" / "arguments" / "models" / "deepseek-v2-lite"
COMMON = ["--model-path", str(MODEL), "--kv-cache-dtype", "fp8_e4m3", "--random-seed", "1"]
DRAFT = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
DRAFT += "--speculative-num-draft-tokens 4 --speculative-draft-attention-backend"

Answers = dict[str, dict[str, Any]]


class Cases:
    """What to start on one tree, by label."""

    def __init__(self, flashinfer: Path) -> None:
        self.flashinfer = flashinfer
        self.listed: dict[str, dict[str, Any]] = {}

    def add(
        self, label: str, site: Path | None, name: str = "", package: Path | None = None
    ) -> None:
        """A server that asks for a backend; without a name, a look at the hook points."""
        self.listed[label] = {
            "path": [str(self.flashinfer), *([str(site)] if site else [])],
            "package": str(package or ""),
            "arguments": [*COMMON, "--attention-backend", name] if name else [],
        }

    def run(self, tree: Path) -> Answers:
        script = Path(__file__).with_name("start.py")
        run = run_in_tree(tree, script, PROGRAM, stdin=json.dumps(self.listed))
        assert run.returncode == 0, run.stderr
        return dict(json.loads(run.stdout))


def flashinfer(folder: Path, version: str) -> Path:
    """A folder with what states an installed version of FlashInfer."""
    metadata = folder / f"flashinfer_python-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n")
    return folder


def wanted_flashinfer(release: str) -> str:
    stated = fetch.member(wheel(release), f"sglang-{release}.dist-info/METADATA")
    assert stated is not None
    version = requirements.exact(requirements.from_metadata(stated)["flashinfer-python"])
    assert version is not None
    return version


def sglang_folder(folder: Path, release: str, ours: str | None = None) -> Path:
    """A folder that states a release of sglang and has nothing else, or one file of the overlay."""
    folder.mkdir()
    (folder / "_version.py").write_text(f'__version__ = "{release}"\n')
    if ours is not None:
        file = folder.parent / folder.name / OURS.removeprefix("sglang/") / "factory.py"
        file.parent.mkdir(parents=True)
        file.write_text(ours)
    return folder


@pytest.fixture(scope="module", params=DOOR)
def served(
    request: pytest.FixtureRequest, installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Answers:
    """On each release that loads plugins, as it was released."""
    release = str(request.param)
    cases = Cases(flashinfer(tmp_path_factory.mktemp("flashinfer"), wanted_flashinfer(release)))
    cases.add("points", installed.site)
    cases.add("points without the wheel", None)
    cases.add(NAME, installed.site, NAME)
    cases.add("flashinfer", None, "flashinfer")
    cases.add("a draft alone", installed.site, "triton")
    cases.listed["a draft alone"]["arguments"] += [*DRAFT.split(), NAME]
    return cases.run(pristine_tree(release))


def test_every_hook_point_is_there_through_the_plugin(served: Answers) -> None:
    printed = served["points"]["printed"].splitlines()
    marks = [mark for line in printed if (mark := line.split(" ")[0]) in ("ok", "MISSING")]
    assert set(marks) == {"ok"} and len(marks) >= 13, printed
    assert served["points"]["exit"] == 0
    without = served["points without the wheel"]["printed"]
    assert "No module named" in without and OURS.replace("/", ".") in without


def test_the_name_resolves_as_flashinfer_does(served: Answers) -> None:
    ours, stock = served[NAME], served["flashinfer"]
    assert len(stock["fields"]) > 300 and "error" not in stock["fields"]
    assert ours["fields"]["attention_backend"] == repr(NAME), ours
    renamed = {field: text.replace(NAME, "flashinfer") for field, text in ours["fields"].items()}
    assert renamed == stock["fields"]
    assert ours["package"] and not stock["package"]


def test_a_draft_may_have_the_name_alone(served: Answers) -> None:
    fields = served["a draft alone"]["fields"]
    assert fields["speculative_draft_attention_backend"] == repr(NAME), served["a draft alone"]
    assert fields["attention_backend"] == "'triton'"


@pytest.mark.parametrize("release", [DOOR[0], DOOR[-1]])
def test_servers_take_the_name_as_they_are_started(
    installed: Installed, release: str, tmp_path: Path
) -> None:
    programs = ("python -m sglang.launch_server", "sglang serve")
    commands = {label: command(PROGRAMS[label], NAME) for label in programs}
    commands["Engine"] = ["Engine", str(MODEL), NAME]
    tree, version = pristine_tree(release), wanted_flashinfer(release)
    packages = [installed.site, flashinfer(tmp_path, version)]
    path = [REPOSITORY, *packages, REPOSITORY / "scripts"]
    run = run_in_tree(
        None,
        REPOSITORY / "tests" / "arguments" / "entry_points.py",
        environment={"PYTHONPATH": os.pathsep.join(map(str, path))},
        stdin=json.dumps({str(tree): commands}),
    )
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout)[str(tree)]
    for label in programs:
        assert f"unrecognized arguments: {STOP}" in answers[label][1], answers[label]
    assert str([NAME] * len(FLAGS)) in answers["Engine"][1], answers["Engine"]


@pytest.fixture(scope="module")
def stopped(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Servers under installs that do not fit, or are damaged: of our name, and of another."""
    made = tmp_path_factory.mktemp("installs")
    cases = Cases(flashinfer(made / "flashinfer", wanted_flashinfer(DEFAULT)))
    sites = {
        "whole": installed.site,
        "without overlay": installed.damaged(made / "no-overlay", "overlay"),
        "without a kernel": installed.damaged(
            made / "no-kernel", f"overlay/{OURS}/gather/gather.py"
        ),
        "without tools": installed.damaged(made / "no-tools", "scripts"),
        "without plugin": installed.damaged(made / "no-plugin", "plugin.py"),
        "old flashinfer": flashinfer(installed.damaged(made / "old"), "0.6.0"),
    }
    packages = {
        "other release": sglang_folder(made / "other", "9.9.9"),
        "broken contract": sglang_folder(made / "contract", DEFAULT),
        "other revision": sglang_folder(made / "revision", DEFAULT, "# another revision\n"),
    }
    for name in (NAME, "triton"):
        for label, site in sites.items():
            cases.add(f"{label}, {name}", site, name)
        for label, package in packages.items():
            cases.add(f"{label}, {name}", installed.site, name, package)
    for name in (NAME, "triton"):  # the first one that states a version is the one that counts
        cases.listed[f"old flashinfer, {name}"]["path"].reverse()
    cases.add("absent, triton", None, "triton")
    return cases.run(pristine_tree(DEFAULT))


@pytest.mark.parametrize(
    ("label", "sentence"),
    {
        "without overlay": r"sglang/.* in .* is changed or missing: install flashinfer-mla-compact",
        "without a kernel": r".*gather\.py in .* is changed or missing: install flashinfer-mla",
        "without tools": r"ModuleNotFoundError: .*: install flashinfer-mla-compact again",
        "old flashinfer": r"flashinfer_python is installed with version 0\.6\.0.*Install .*",
        "other release": r"sglang 9\.9\.9 at .* has no pin: install one of 0\.5\.9, .*",
        "broken contract": rf"sglang/.* is not as sglang {re.escape(DEFAULT)} has it.*: use sglang",
        "other revision": r".* is patched by another revision .*: run `mla-compact apply",
    }.items(),
)
def test_a_server_that_asks_for_the_name_stops_in_one_sentence(
    stopped: Answers, label: str, sentence: str
) -> None:
    answer = stopped[f"{label}, {NAME}"]
    assert list(answer["fields"]) == ["error"], answer
    assert re.fullmatch(f"{NAME}: {sentence}.*", answer["fields"]["error"]), answer


def test_without_its_module_the_name_is_no_choice(stopped: Answers) -> None:
    assert f"invalid choice: '{NAME}'" in stopped[f"without plugin, {NAME}"]["fields"]["error"]


def test_any_other_server_starts_as_if_the_wheel_were_absent(stopped: Answers) -> None:
    expected = stopped["absent, triton"]
    assert len(expected["fields"]) > 300 and "error" not in expected["fields"]
    others = [label for label in stopped if label.endswith(", triton")]
    assert [label for label in others if stopped[label]["fields"] != expected["fields"]] == []
    assert len(others) == 10


def test_a_patched_tree_serves_and_the_plugin_stands_back(
    installed: Installed, tmp_path: Path
) -> None:
    cases = Cases(flashinfer(tmp_path / "flashinfer", wanted_flashinfer(DEFAULT)))
    cases.add("points", installed.site)
    cases.add("both", installed.site, NAME)
    cases.add("patches alone", None, NAME)
    answers = cases.run(applied_tree(DEFAULT))
    assert answers["points"]["exit"] == 0
    assert answers["both"]["fields"]["attention_backend"] == repr(NAME), answers["both"]
    assert answers["both"]["fields"] == answers["patches alone"]["fields"]
