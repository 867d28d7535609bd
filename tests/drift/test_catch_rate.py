"""What the drift report says of edits that break the overlay, and of edits that do not."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from carrytool import upstream
from carrytool.compare import Change, Judged, compare
from carrytool.needs import Needs
from carrytool.upstream import Upstream
from overlaytool.contract.symbols import Read
from overlaytool.pin import REPOSITORY, find

EDITS = tomllib.loads(Path(__file__).with_name("edits.toml").read_text())
BREAKING, UNTOUCHED, HARMLESS = (EDITS[kind] for kind in ("breaking", "untouched", "harmless"))
BACKEND = "sglang/srt/layers/attention/flashinfer_mla_backend.py"
NEW = "sglang/srt/layers/attention/moved.py"
Edit = dict[str, str]


@cache
def pinned() -> tuple[Upstream, Needs]:
    """sglang 0.5.23 with its FlashInfer; of its files, those that an edit may concern."""
    pin = find(REPOSITORY, "0.5.23")
    own = upstream.of_pin(pin)
    whole = upstream.with_flashinfer(own, upstream.flashinfer(pin, own, own))
    files = sorted({NEW, *(edit["file"] for kind in EDITS.values() for edit in kind.values())})
    return replace(whole, files=files), Needs(pin, whole)


def changes(texts: dict[str, str]) -> list[Change]:
    """Against a target that has other texts at these paths."""
    own, needs = pinned()
    read: Read = lambda path: texts[path].encode() if path in texts else own.read(path)  # noqa: E731
    return compare(needs, own, replace(own, read=read))


def edited(edit: Edit) -> list[Change]:
    source = text(edit["file"])
    assert edit["old"] in source, "the table names code that is not there"
    changed = source.replace(edit["old"], edit["new"], -1 if "all" in edit else 1)
    return changes({edit["file"]: changed})


def text(file: str) -> str:
    return (pinned()[0].read(file) or b"").decode()


def worst(found: list[Change]) -> Judged:
    return max((one.verdict for one in found), key=list(Judged).index, default=Judged.UNTOUCHED)


@pytest.mark.parametrize("label", BREAKING)
def test_an_edit_that_breaks_is_to_be_read_or_broken(label: str) -> None:
    assert worst(edited(BREAKING[label])) in (Judged.READ, Judged.BROKEN)


@pytest.mark.parametrize("label", UNTOUCHED)
def test_an_edit_of_what_does_not_run_or_is_not_ours_is_untouched(label: str) -> None:
    assert edited(UNTOUCHED[label]) == []


@pytest.mark.parametrize("label", HARMLESS)
def test_an_edit_that_harms_nothing_is_not_broken(label: str) -> None:
    assert worst(edited(HARMLESS[label])) in (Judged.UNTOUCHED, Judged.READ)


@pytest.mark.parametrize(
    ("file", "name", "left"),
    [
        (BACKEND, "FlashInferMLAIndicesUpdaterDecode", True),
        (BACKEND, "FlashInferMLAAttnBackend", True),
        ("sglang/srt/mem_cache/memory_pool.py", "KVWriteLoc", True),
        ("sglang/srt/configs/model_config.py", "ModelConfig", False),
        ("sglang/srt/model_executor/forward_batch_info.py", "build_inner_fb_view", False),
    ],
)
def test_what_moved_with_its_name_is_untouched(file: str, name: str, left: bool) -> None:
    """What the overlay imports has to be left behind as an import; what it only reads, not."""
    source = text(file)
    tree = ast.parse(source)
    (node,) = (n for n in tree.body if getattr(n, "name", "") == name)
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    start = min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) - 1
    lines = source.splitlines(keepends=True)
    moved = "".join(lines[start : node.end_lineno])
    door = f"from {NEW.removesuffix('.py').replace('/', '.')} import {name}\n" if left else ""
    rest = "".join([*lines[:start], door, *lines[node.end_lineno :]])
    head = "".join(f"{ast.unparse(n)}\n" for n in tree.body if isinstance(n, ast.ImportFrom))
    there = changes({file: rest, NEW: head + moved})
    assert [change for change in there if change.name != "places that name us"] == []


def test_a_broken_name_shows_our_line_and_what_python_would_say() -> None:
    faults = [f for change in edited(BREAKING["a scale goes to the pool"]) for f in change.faults]
    assert "LayerPool.set_mla_kv_buffer" in faults[0]
    assert "unexpected keyword argument 'k_scale'" in faults[0]
    gone = next(c for c in edited(BREAKING["the runner's pool renamed"]) if c.faults)
    assert any(line.startswith("upstream/pools.py:") for line in gone.lines)
