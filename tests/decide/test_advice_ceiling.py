"""The ceiling follows from the exposed share and says when to stop."""

from __future__ import annotations

import pytest

from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide.ceiling import PRACTICAL_THRESHOLD, ceiling


def test_a_fifth_of_the_step_is_a_speed_up_of_a_quarter() -> None:
    found = ceiling(0.2)
    assert found.speedup == pytest.approx(1.25)
    assert found.worth_choosing
    assert "20.0% of the step" in found.statement
    assert "one that halves them saves 10.0%" in found.statement


def test_below_the_threshold_it_says_stop() -> None:
    found = ceiling(PRACTICAL_THRESHOLD / 2)
    assert found.worth_choosing is False
    assert "Stop here and keep the baseline" in found.statement
    assert ceiling(PRACTICAL_THRESHOLD).worth_choosing


def test_a_share_whose_half_does_not_count_is_hardly_worth_it() -> None:
    assert "hardly worth it" in ceiling(0.03).statement
    assert "hardly worth it" not in ceiling(0.04).statement


def test_unknown_says_to_measure() -> None:
    found = ceiling(None)
    assert (found.share, found.speedup, found.worth_choosing, found.basis) == (None, None, None, "unknown")
    assert "measure the exposed share" in found.statement


@pytest.mark.parametrize("share", [-0.1, 1.0, 20.0, float("nan")])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match="must be at least 0 and below 1"):
        ceiling(share)
