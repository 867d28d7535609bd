"""Upstream's MLA attention cases with our name: each passes, or fails in stock as well."""

from __future__ import annotations

import pytest

from tests.gpu.kit import CONTROLS, OURS, Outcomes
from tests.gpu.kit_cases import CASES


@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("case", CASES)
def test_upstream_case_passes_or_fails_in_stock_too(
    case: str, variant: str, kit_outcomes: Outcomes
) -> None:
    ours = kit_outcomes[case][variant]
    if ours["outcome"] == "passed":
        return
    if kind(ours) in {("skipped", "ImportError"), ("skipped", "ModuleNotFoundError")}:
        pytest.skip(f"this installation lacks what the case imports: {ours['error']}")
    stock = {name: kit_outcomes[case][name] for name in CONTROLS}
    alike = [name for name, outcome in stock.items() if kind(outcome) == kind(ours)]
    assert alike, f"{ours} with our name, and with stock {stock}"


def kind(outcome: dict[str, str]) -> tuple[str, str]:
    """How a case ended: outcome and type of the error, not the figures in its message."""
    return outcome["outcome"], outcome["error"].partition(":")[0]
