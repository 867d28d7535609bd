"""The committed pins: their contract holds on their own release, and notices what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest
from carrytool import drift, upstream
from overlaytool import contract, fetch
from overlaytool.contract import Entry
from overlaytool.contract.symbols import Read
from overlaytool.pin import REPOSITORY, Pin, find

from tests.trees import PINS


@pytest.fixture(params=PINS)
def pin(request: pytest.FixtureRequest) -> Pin:
    return find(REPOSITORY, str(request.param))


def rows(pin: Pin, table: str = "entry") -> list[Entry]:
    return drift.entries(pin, pin.folder / "contract.toml", table)


def read(pin: Pin) -> Read:
    own = upstream.of_pin(pin)
    return upstream.with_flashinfer(own, upstream.flashinfer(pin, own, own))


def test_a_pin_is_clean_against_its_own_release(pin: Pin) -> None:
    found = drift.measure(pin, pin.release, drift.Decisions())
    assert [row for row in found.findings if row.verdict != "held"] == []
    assert found.exit == 0


def test_every_row_names_one_line_of_the_overlay_or_of_a_patch(pin: Pin) -> None:
    folders = [pin.repository / drift.PACKAGE, pin.folder]
    for entry in [*rows(pin), *rows(pin, "cure")]:
        contract.needing_line(folders, entry.needed_by)


def test_every_row_notices_that_its_symbol_was_renamed(pin: Pin) -> None:
    source = read(pin)
    for entry in rows(pin):
        name = entry.symbol.rpartition(".")[2].encode()
        if name in (b"", b"__init__"):
            continue

        def renamed(path: str, name: bytes = name) -> bytes | None:
            content = source(path)
            return content and content.replace(name, name + b"_renamed")

        [finding] = contract.check([entry], renamed)
        assert finding.verdict != "held", entry


def test_a_tree_with_a_renamed_method_exits_30_and_names_the_overlay_line(
    pin: Pin, tmp_path: Path
) -> None:
    own = upstream.of_pin(pin)
    module = "sglang/srt/layers/attention/flashinfer_mla_backend.py"
    (wheel,) = pin.wheels.glob(f"sglang-{pin.release}-*.whl")
    for path in fetch.members(wheel):
        if path.startswith("sglang/srt/") and path.endswith(".py"):
            content = own.read(path) or b""
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            renamed = content.replace(b"def get_key_buffer", b"def key_buffer")
            (tmp_path / path).write_bytes(renamed if path != module else content)
    found = drift.measure(pin, str(tmp_path), drift.Decisions())
    assert found.exit == 30
    broken = {row.needed_by for row in found.findings if row.verdict == "gone"}
    assert any(line.startswith("pool/layer_pool.py:") for line in broken)
