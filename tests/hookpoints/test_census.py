"""No place where FlashInfer's name stands in a pinned wheel is without a verdict for our name."""

from __future__ import annotations

from collections import Counter

import pytest
from overlaytool.pin import REPOSITORY, find

from tests.hookpoints.census import VERDICTS, Place, classed, in_wheel, place_of, places
from tests.trees import PINS

ENTRIES = classed()


@pytest.fixture(scope="module", params=PINS)
def found(request: pytest.FixtureRequest) -> tuple[str, Counter[Place]]:
    return request.param, in_wheel(request.param)


def expected(release: str) -> Counter[Place]:
    rows = [entry for entry in ENTRIES if release in entry["releases"]]
    return Counter({place_of(row): row.get("count", 1) for row in rows})


def test_every_place_is_classed(found: tuple[str, Counter[Place]]) -> None:
    release, there = found
    assert there - expected(release) == Counter()


def test_no_entry_is_stale(found: tuple[str, Counter[Place]]) -> None:
    release, there = found
    assert expected(release) - there == Counter()


def test_every_entry_has_one_verdict_and_its_reason() -> None:
    for entry in ENTRIES:
        verdicts = [entry[verdict] for verdict in VERDICTS if verdict in entry]
        assert len(verdicts) == 1 and verdicts[0], entry
        assert entry["releases"], entry


def test_no_place_is_classed_twice() -> None:
    keys = Counter((place_of(e), release) for e in ENTRIES for release in e["releases"])
    assert keys.most_common(1)[0][1] == 1


def test_what_serves_a_place_is_a_patch_or_a_module_of_the_overlay() -> None:
    for entry in (entry for entry in ENTRIES if "served" in entry):
        server = entry["served"].split(":")[0]
        for release in entry["releases"]:
            pin = find(REPOSITORY, release)
            names = [*pin.series(), *(file.name for file in pin.overlay().values())]
            assert server in names, entry


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


def test_defaults_decorators_literals_memberships_and_keywords_are_found() -> None:
    assert list(places("f.py", SOURCE)) == [
        Place("f.py", "", 'KNOWN = ["fa3", "flashinfer"]'),
        Place("f.py", "Server.choose", 'def choose(self, backend="flashinfer"):'),
        Place("f.py", "Server.choose", 'if ( … and backend in ("flashinfer", "fa3")'),
        Place("f.py", "Server.choose", 'launch(attention_backend="flashinfer")'),
        Place(
            "f.py",
            "Server",
            'def choose(self, backend="flashinfer"): … @register("flashinfer")',
        ),
    ]


def test_a_place_does_not_depend_on_its_line_number() -> None:
    moved = "import os\n\n" + SOURCE
    assert list(places("f.py", moved)) == list(places("f.py", SOURCE))
