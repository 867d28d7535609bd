"""The committed pins: clean on their own release, and all that is stated by hand is there."""

from __future__ import annotations

import re
import tomllib

import pytest
from carrytool import drift, upstream
from carrytool.needs import Needs
from carrytool.uses import PACKAGE
from overlaytool.contract import digest_of
from overlaytool.contract.symbols import Modules
from overlaytool.pin import REPOSITORY, Pin, find

from tests.trees import PINS


@pytest.fixture(params=PINS)
def pin(request: pytest.FixtureRequest) -> Pin:
    return find(REPOSITORY, str(request.param))


def needs_of(pin: Pin) -> Needs:
    own = upstream.of_pin(pin)
    return Needs(pin, upstream.with_flashinfer(own, upstream.flashinfer(pin, own, own)))


def test_a_pin_is_clean_against_its_own_release(pin: Pin) -> None:
    found = drift.measure(pin, pin.release, drift.Decisions())
    assert (found.changes, found.exit) == ((), 0)


def test_every_name_that_is_stated_by_hand_stands_in_some_pin() -> None:
    text = (REPOSITORY / "contract.toml").read_text()
    said = [name for name in re.findall(r'"([^"]+\.py:[^" ]+)"', text) if "/" in name]
    names = {name for name in said if name.startswith(("sglang/", "flashinfer/"))}
    for release in PINS:
        tree = needs_of(find(REPOSITORY, release)).tree
        names = {name for name in names if tree.find(name) is None}
    assert names == set()


def test_every_line_that_is_stated_by_hand_is_there() -> None:
    said = tomllib.loads((REPOSITORY / "contract.toml").read_text())["imitates"]
    package = REPOSITORY / "overlay" / PACKAGE
    for file, _, line in (text.partition(": ") for text in said):
        files = [package / file, REPOSITORY / file, *REPOSITORY.glob(f"patches/*/{file}")]
        assert any(line in found.read_text() for found in files if found.exists()), line


# What the reader takes for upstream's and is not: pointers of kernels, lists, our own objects.
OURS = re.compile(r"pool\.to|separate_rope\.append|step\.readings|batch\.(more|step)")


def test_every_attribute_that_the_overlay_reads_is_found_in_some_pin() -> None:
    """Where nothing finds it, nothing would notice that it is gone."""
    read: set[str] = set()
    found: set[str] = set()
    for release in PINS:
        needs = needs_of(find(REPOSITORY, release))
        read |= {use.line for use in needs.read() if ".py:" in use.line}
        found |= {use.line for uses in needs.uses.values() for use in uses}
    assert [line for line in sorted(read - found) if not OURS.search(line)] == []


def test_digests_do_not_depend_on_what_does_not_run() -> None:
    one = "def f(a: int, *, b: str = 'x') -> None:\n    'Doc.'\n    return g(a)  # why\n"
    two = "def f(a, *, b='x'):\n\n    return g(a)\n"
    digests = {digest_of(Modules({"f.py": text.encode()}.get), "f.py:f") for text in (one, two)}
    assert len(digests) == 1
    three = digest_of(Modules({"f.py": two.replace("g(a)", "g(b)").encode()}.get), "f.py:f")
    assert three not in digests
