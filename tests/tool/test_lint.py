"""Lint of the patch files: one sentence a fault, naming the patch and, where it can, the line."""

from __future__ import annotations

import pytest
from carrytool.lint import lint
from overlaytool.pin import REPOSITORY, Pin

from tests.tool.conftest import Overlay
from tests.tool.toy import CHOICES_PATCH, HEADER, REGISTRY_PATCH, Toy, snapshot


def test_the_toy_is_clean(overlay: Overlay) -> None:
    assert overlay("lint") == (0, "lint: 0 faults in 2 patches\n", "")


FAULTS = {
    "no header": (REGISTRY_PATCH.removeprefix(HEADER), "lacks Description"),
    "empty field": (
        REGISTRY_PATCH.replace("Drop-when: upstream has it", "Drop-when:"),
        "Drop-when",
    ),
    "unknown field": (REGISTRY_PATCH.replace("---\n", "Touches: x\n---\n", 1), "Touches"),
    "no reason": (REGISTRY_PATCH.replace(" [out of tree]", ""), "[reason]"),
    "unknown status": (REGISTRY_PATCH.replace("Inappropriate", "Someday"), "Someday"),
    "other release": (REGISTRY_PATCH.replace("sglang 1.2.3", "sglang 1.2.2"), "1.2.2"),
    "trailing space": (REGISTRY_PATCH.replace("'compact')", "'compact') "), "white space"),
    "carriage return": (REGISTRY_PATCH.replace("'compact')\n", "'compact')\r\n"), "CR"),
    "truncated": (REGISTRY_PATCH[:-12], "refuses it: error: corrupt patch"),
    "few lines of context": (
        HEADER + "--- a/sglang/srt/choices.py\n+++ b/sglang/srt/choices.py\n"
        "@@ -5,2 +5,3 @@\n     'c',\n+    'x',\n ]\n",
        "fewer than 3 lines of context",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(toy: Toy, overlay: Overlay, name: str) -> None:
    text, said = FAULTS[name]
    toy.patch("registry.patch", text)
    linted = overlay("lint")
    assert linted.code == 1
    assert any("registry.patch" in line and said in line for line in linted.out.splitlines())


def test_two_patches_on_one_file_are_declared_or_refused(toy: Toy, overlay: Overlay) -> None:
    second = CHOICES_PATCH.replace("-2,4 +2,5", "-3,4 +3,5").replace("     'a',\n", "")
    second = second.replace("+    'compact',\n", "     'compact',\n+    'more',\n")
    toy.patch("second.patch", second)
    toy.series("choices.patch", "registry.patch", "second.patch")
    assert "second.patch: sglang/srt/choices.py is changed by choices.patch" in overlay("lint").out
    toy.patch("second.patch", second.replace("---\n", "Builds-on: choices.patch\n---\n", 1))
    assert overlay("lint").code == 0
    before = snapshot(toy.tree)
    for verb in ("lock", "apply", "unapply"):
        assert overlay(verb, *(() if verb == "lock" else ("--tree", toy.tree))).code == 0
    assert snapshot(toy.tree) == before


def test_a_patch_outside_the_series_is_a_fault(toy: Toy, overlay: Overlay) -> None:
    toy.series("registry.patch")
    assert "choices.patch: not in the series" in overlay("lint").out


@pytest.mark.parametrize("names", [["a.patch"], ["registry.patch"] * 2, ["../x.patch"]])
def test_an_unsound_series_is_refused(toy: Toy, overlay: Overlay, names: list[str]) -> None:
    toy.series(*names)
    assert overlay("lint").code == 1
    assert overlay("apply", "--tree", toy.tree).code == 1


def test_every_real_pin_is_clean() -> None:
    pins = sorted(series.parent.name for series in REPOSITORY.glob("patches/*/series"))
    assert [fault for pin in pins for fault in lint(Pin(REPOSITORY, pin))] == []
    assert len(pins) >= 2
