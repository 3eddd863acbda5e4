"""The bootstrap against simulations with known truth, published t quantiles, and exact identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_dispatch.decide.stats import bootstrap_ratio, noise_floor, student_t_quantile

TRUE_RATIO = 0.9
SIMULATIONS = 300
BINOMIAL_BOUND = 3 * math.sqrt(0.95 * 0.05 / SIMULATIONS)
"""Three standard errors of an observed 95 % coverage: 3.8 %."""
EXACT = 1e-9
"""Relative; logarithms and exponentials of doubles in another order."""


def coverage(between: float, within: float, launches: int, paired: bool = True) -> float:
    """Share of simulated experiments whose interval holds the true ratio."""
    rng = np.random.default_rng(7)
    hits = 0
    for index in range(SIMULATIONS):
        drift = rng.normal(0, 0.2, launches) if paired else np.zeros(launches)
        arm, base = (
            [
                np.exp(math.log(ratio) + shift + rng.normal(0, between / math.sqrt(2)) + rng.normal(0, within, 12))
                for shift in drift
            ]
            for ratio in (TRUE_RATIO, 1.0)
        )
        found = bootstrap_ratio(arm, base, paired=paired, resamples=400, seed=index)
        hits += found.low <= TRUE_RATIO <= found.high
    return hits / SIMULATIONS


@pytest.mark.parametrize("launches", [3, 5, 10])
def test_coverage_is_nominal_where_launches_differ(launches: int) -> None:
    """The hard case for few launches: a plain percentile interval of launches covers 85 % at five."""
    assert coverage(between=0.05, within=0.002, launches=launches) == pytest.approx(0.95, abs=BINOMIAL_BOUND)


@pytest.mark.parametrize(("between", "within", "paired"), [(0.0, 0.05, True), (0.03, 0.05, True), (0.05, 0.02, False)])
def test_coverage_is_never_below_nominal(between: float, within: float, paired: bool) -> None:
    assert coverage(between, within, 5, paired) >= 0.95 - BINOMIAL_BOUND


@pytest.mark.parametrize(
    ("freedom", "published"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045)]
)
def test_student_quantiles_of_the_printed_table(freedom: int, published: float) -> None:
    assert student_t_quantile(0.975, freedom) == pytest.approx(published, abs=0.0005)


def samples(seed: int, launches: int = 5, count: int = 8, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [scale * np.exp(rng.normal(0, 0.1, count)) for _ in range(launches)]


@given(seed=st.integers(0, 1000), launches=st.integers(1, 6), count=st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_swapping_the_arms_inverts_the_interval(seed: int, launches: int, count: int) -> None:
    left, right = samples(seed, launches, count), samples(seed + 1, launches, count)
    there, back = bootstrap_ratio(left, right, resamples=200), bootstrap_ratio(right, left, resamples=200).inverse
    for name in ("ratio", "low", "high"):
        assert getattr(there, name) == pytest.approx(getattr(back, name), rel=EXACT)


@given(seed=st.integers(0, 1000), factor=st.floats(0.1, 10.0))
@settings(max_examples=25, deadline=None)
def test_a_factor_on_one_arm_moves_the_whole_interval(seed: int, factor: float) -> None:
    left, right = samples(seed), samples(seed + 1)
    plain = bootstrap_ratio(left, right, resamples=200)
    scaled = bootstrap_ratio([factor * launch for launch in left], right, resamples=200)
    for name in ("ratio", "low", "high"):
        assert getattr(scaled, name) == pytest.approx(factor * getattr(plain, name), rel=EXACT)


@given(seed=st.integers(0, 1000), drift=st.lists(st.floats(0.2, 5.0), min_size=5, max_size=5))
@settings(max_examples=25, deadline=None)
def test_what_hits_a_whole_launch_cancels_when_paired(seed: int, drift: list[float]) -> None:
    left, right = samples(seed), samples(seed + 1)
    plain = bootstrap_ratio(left, right, resamples=200)
    moved = bootstrap_ratio(
        [launch * by for launch, by in zip(left, drift, strict=True)],
        [launch * by for launch, by in zip(right, drift, strict=True)],
        resamples=200,
    )
    assert (moved.ratio, moved.low, moved.high) == pytest.approx((plain.ratio, plain.low, plain.high), rel=EXACT)


def test_the_statistic_by_hand() -> None:
    arm, base = [np.array([1.0, 2.0, 30.0]), np.array([8.0])], [np.array([4.0]), np.array([1.0, 2.0, 3.0])]
    found = bootstrap_ratio(arm, base, resamples=50)
    assert found.ratio == pytest.approx(math.sqrt((2 / 4) * (8 / 2)), rel=EXACT)
    assert (found.launches, found.iterations, found.paired) == (2, 4, True)
    assert found.low <= found.ratio <= found.high


def test_same_seed_same_interval() -> None:
    left, right = samples(1), samples(2)
    assert bootstrap_ratio(left, right, seed=3) == bootstrap_ratio(left, right, seed=3)


def test_two_launches_are_worth_very_little() -> None:
    """t with one degree of freedom: 12.7 standard errors."""
    rng = np.random.default_rng(0)
    arm = [np.exp(rng.normal(0, 0.001, 12) + shift) for shift in (0.0, 0.02)]
    base = [np.exp(rng.normal(0, 0.001, 12)) for _ in range(2)]
    found = bootstrap_ratio(arm, base)
    assert found.high / found.low > 1.1


@pytest.mark.parametrize("bad", [[], [np.array([])], [np.array([1.0, 0.0])], [np.array([math.nan])]])
def test_nonsense_is_refused(bad: list[np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"launch|positive"):
        bootstrap_ratio(bad, bad)


def test_launches_that_cannot_be_paired_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        bootstrap_ratio(samples(1, 3), samples(2, 4))


def test_noise_floor_grows_with_noise_and_sees_the_known_spread() -> None:
    visits = [np.repeat(np.arange(4), 3)] * 5
    rng = np.random.default_rng(0)
    quiet, loud = (noise_floor([np.exp(rng.normal(0, sigma, 12)) for _ in range(5)], visits) for sigma in (0.002, 0.05))
    assert quiet is not None
    assert loud is not None
    assert quiet.relative < 0.01 < loud.relative < 0.2
    assert (quiet.method, quiet.drifted) == ("visits", False)


def test_noise_floor_covers_a_baseline_that_drifts_between_visits() -> None:
    """Odd visits 10 % slower: the floor must reach at least that far, whatever the interval's width."""
    visits = [np.repeat(np.arange(4), 3)] * 5
    rng = np.random.default_rng(0)
    baseline = [np.exp(rng.normal(0, 0.001, 12)) * np.where(visit % 2, 1.1, 1.0) for visit in visits]
    found = noise_floor(baseline, visits)
    assert found is not None
    assert found.drifted
    assert found.relative >= 0.0999


def test_noise_floor_of_separate_launches_splits_launches() -> None:
    baseline = [np.full(6, 1.0 + 0.1 * (index % 2)) for index in range(6)]
    found = noise_floor(baseline, [np.zeros(6, dtype=np.int64)] * 6, paired=False)
    assert found is not None
    assert (found.method, found.drifted) == ("launches", True)
    assert found.relative == pytest.approx(0.1, rel=1e-6)


def test_no_halves_no_floor() -> None:
    assert noise_floor([np.ones(3)], [np.zeros(3, dtype=np.int64)]) is None
    assert noise_floor([np.ones(3)], [np.zeros(3, dtype=np.int64)], paired=False) is None
