"""No place where FlashInfer's name stands in a pinned wheel is without a verdict for our name."""

from __future__ import annotations

from collections import Counter

import pytest
from carrytool import mentions
from carrytool.mentions import Place
from overlaytool.pin import REPOSITORY, find

from tests.hookpoints.census import (
    NAMES,
    VERDICTS,
    classed,
    entries,
    in_wheel,
    place_of,
    unclassed,
)
from tests.trees import PINS


@pytest.fixture(scope="module")
def found() -> dict[str, Counter[Place]]:
    return {release: in_wheel(release) for release in PINS}


def test_every_place_is_classed(found: dict[str, Counter[Place]]) -> None:
    assert {release: unclassed(there) for release, there in found.items() if unclassed(there)} == {}


def test_no_entry_is_stale(found: dict[str, Counter[Place]]) -> None:
    there: Counter[Place] = Counter()
    for places in found.values():
        there |= places
    assert [place for mark, place in mentions.changes(classed(), there) if mark == "-"] == []


def test_every_entry_has_one_verdict_and_its_reason() -> None:
    for entry in entries():
        verdicts = [entry[verdict] for verdict in VERDICTS if verdict in entry]
        assert len(verdicts) == 1 and verdicts[0], entry


def test_no_place_is_classed_twice() -> None:
    assert len(classed()) == len(entries())


def test_what_serves_a_place_is_a_patch_or_a_module_of_the_overlay(
    found: dict[str, Counter[Place]],
) -> None:
    for release, there in found.items():
        pin = find(REPOSITORY, release)
        names = [*pin.series(), *(file.name for file in pin.overlay().values())]
        for entry in (e for e in entries() if "served" in e and place_of(e) in there):
            assert entry["served"].split(":")[0] in names, (release, entry)


SOURCE = '''
KNOWN = ["fa3", "flashinfer"]


class Server:
    @register("flashinfer")
    def choose(self, backend="flashinfer"):
        """Not flashinfer: a docstring is no place."""
        if (
            self.fast
            and backend in ("flashinfer", "fa3")  # a comment
        ):
            launch(attention_backend="flashinfer")
'''


def places(source: str) -> list[Place]:
    return list(mentions.in_tree(["f.py"], {"f.py": source.encode()}.get, NAMES))


def test_defaults_decorators_literals_memberships_and_keywords_are_found() -> None:
    assert places(SOURCE) == [
        Place("f.py", "", "KNOWN = list with 'flashinfer'"),
        Place("f.py", "Server", "def choose 'flashinfer'"),
        Place("f.py", "Server.choose", "if backend in tuple with 'flashinfer'"),
        Place("f.py", "Server.choose", "launch: launch(attention_backend='flashinfer')"),
        Place("f.py", "Server", "def choose register('flashinfer')"),
    ]


def test_a_place_depends_on_no_line_number_and_on_no_other_name_of_its_list() -> None:
    moved = "import os\n\n" + SOURCE.replace('["fa3", ', '["fa3", "fa4", ')
    assert places(moved) == places(SOURCE)


def test_a_new_place_is_the_only_one_that_is_asked_for() -> None:
    there = classed() + mentions.in_tree(["f.py"], {"f.py": b'NEW = ["flashinfer"]'}.get, NAMES)
    assert unclassed(there) == [Place("f.py", "", "NEW = list with 'flashinfer'")]
