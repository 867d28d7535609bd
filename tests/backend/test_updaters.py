"""A step is planned by upstream's updater first, and placed after that, for the same requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.backend.conftest import Import

REQUESTS = torch.zeros(3, dtype=torch.int64)


class Backend:
    """Notes what it is asked for, and the lengths that the wrapper then holds."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def place_decode(self, wrapper: Any, requests: int) -> None:
        self.calls.append(("decode", wrapper, requests))

    def place_extend(self, wrapper: Any, requests: int, tokens: int | None) -> None:
        self.calls.append(("extend", wrapper._kv_indptr_buf.tolist(), requests, tokens))

    def place_nothing(self) -> None:
        self.calls.append("nothing")


def wrapper() -> Any:
    return SimpleNamespace(_kv_indptr_buf=torch.full((4,), 99, dtype=torch.int32))


def test_a_decode_is_placed_once_it_is_planned(overlay: Import) -> None:
    backend = Backend()
    updater = overlay("upstream.updaters").CompactDecodeIndices(None, backend)
    updater.update(REQUESTS, 12, decode_wrapper="wrapper", init_metadata_replay=True)
    assert backend.calls == [("plan", 3), ("decode", "wrapper", 3)]


def test_an_extend_is_placed_once_it_is_planned(overlay: Import) -> None:
    backend = Backend()
    updater = overlay("upstream.updaters").CompactPrefillIndices(None, backend)
    updater.update(REQUESTS, 12, prefill_wrapper_paged=wrapper(), use_ragged=False)
    assert backend.calls == [("plan", 3), ("extend", [99] * 4, 3, None)]


def test_an_extend_with_keys_of_its_own_is_not_placed(overlay: Import) -> None:
    backend = Backend()
    updater = overlay("upstream.updaters").CompactPrefillIndices(None, backend)
    updater.update(REQUESTS, 12, prefill_wrapper_paged=wrapper(), use_ragged=True)
    assert backend.calls == [("plan", 3), "nothing"]


@pytest.mark.parametrize(
    ("step", "tokens"),
    [
        (SimpleNamespace(draft_token_num=4), 4),
        (SimpleNamespace(draft_token_num=4, ragged_verify_layout=None), 4),
        (SimpleNamespace(draft_token_num=4, ragged_verify_layout="layout"), None),
        (SimpleNamespace(), None),
    ],
    ids=["older verify", "verify", "ragged verify", "draft"],
)
def test_a_verify_tells_its_query_tokens(
    overlay: Import, step: SimpleNamespace, tokens: int | None
) -> None:
    backend = Backend()
    updater = overlay("upstream.updaters").CompactPrefillIndices(None, backend)
    updater.update(REQUESTS, prefill_wrapper_paged=wrapper(), use_ragged=False, spec_info=step)
    assert backend.calls[-1] == ("extend", [99] * 4, 3, tokens)


def test_lengths_that_were_planned_on_the_host_reach_the_wrapper(overlay: Import) -> None:
    backend = Backend()
    updater = overlay("upstream.updaters").CompactPrefillIndices(None, backend)
    plan = {"kv_indptr_cpu": torch.tensor([0, 5, 9, 20], dtype=torch.int32)}
    updater.update(
        REQUESTS,
        prefill_wrapper_paged=wrapper(),
        use_ragged=False,
        fast_verify_plan_kwargs=plan,
    )
    assert backend.calls[-1] == ("extend", [0, 5, 9, 20], 3, None)


@pytest.mark.parametrize("done", [False, True])
def test_a_plan_waits_until_the_one_before_is_copied(
    overlay: Import, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    backend = Backend()

    class Event:
        def record(self) -> None:
            backend.calls.append("copied")

        def query(self) -> bool:
            return done

        def synchronize(self) -> None:
            backend.calls.append("wait")

    monkeypatch.setattr("torch.cuda.Event", Event)
    updater = overlay("upstream.updaters").CompactDecodeIndices(None, backend)
    updater.update(REQUESTS, 12, decode_wrapper="wrapper")
    waited = [] if done else ["wait"]
    assert backend.calls == [*waited, ("plan", 3), "copied", ("decode", "wrapper", 3)]


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_what_upstream_can_not_plan_is_not_placed(overlay: Import, kind: str) -> None:
    backend, indices = Backend(), overlay("upstream.updaters")
    with pytest.raises(RuntimeError, match="larger than the pool of requests"):
        if kind == "decode":
            updater = indices.CompactDecodeIndices(None, backend)
            updater.update(REQUESTS, decode_wrapper=wrapper(), fails=True)
        else:
            updater = indices.CompactPrefillIndices(None, backend)
            updater.update(REQUESTS, prefill_wrapper_paged=wrapper(), use_ragged=False, fails=True)
    assert backend.calls == []
