"""The time budget decides how much is measured: never fewer than two arms and two timed iterations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_dispatch.flow.budget import (
    CPU_FLOPS_PER_CORE,
    LEAST_ITERATIONS,
    LEAST_SKEW_LAUNCHES,
    MOST_ITERATIONS,
    Cost,
    layer_seconds,
    plan_decide,
    skew_launches,
)
from moe_dispatch.workload.catalogue import find_model

COST = Cost(start_s=5.0, arm_s=1.0)


def wall(plan_arms: int, timed: int, launches: int, skewed: int, iteration_s: float, cost: Cost) -> float:
    """Wall time by counting every pass on its own."""
    seconds = 0.0
    for launch in range(launches):
        seconds += cost.start_s
        for _ in range(plan_arms):
            seconds += cost.arm_s
        for _ in range(1 + (launch < skewed)):
            seconds += iteration_s  # what all arms share is warmed up once
            for _ in range(plan_arms):
                seconds += iteration_s * (1 + timed)
    return seconds


@given(
    left=st.floats(0, 2000),
    launches=st.integers(1, 8),
    arms=st.integers(1, 8),
    skewed=st.booleans(),
    iteration=st.floats(1e-3, 5),
)
def test_plan_fits_or_is_the_least(left: float, launches: int, arms: int, skewed: bool, iteration: float) -> None:
    plan = plan_decide(left_s=left, launches=launches, arms=arms, skewed=skewed, iteration_s=iteration, cost=COST)
    timed = plan.visits * plan.iterations
    assert min(arms, 2) <= plan.arms <= arms
    assert LEAST_ITERATIONS <= timed <= MOST_ITERATIONS
    assert plan.visits % 2 == 0  # even and odd visits of the baseline are its own repeats
    assert plan.expected_s == pytest.approx(wall(plan.arms, timed, launches, plan.skew_launches, iteration, COST))
    fewest = min(LEAST_SKEW_LAUNCHES, launches) if skewed else 0
    assert plan.skew_launches in (fewest, launches if skewed else 0)
    least = (plan.arms, timed, plan.skew_launches) == (min(arms, 2), LEAST_ITERATIONS, fewest)
    assert least or plan.expected_s <= left


def test_arms_come_before_skewed_launches_and_those_before_iterations() -> None:
    def planned(left: float) -> tuple[int, int, int]:
        plan = plan_decide(left_s=left, launches=5, arms=3, skewed=True, iteration_s=1.0, cost=COST)
        return plan.arms, plan.skew_launches, plan.visits * plan.iterations

    few, every = wall(3, LEAST_ITERATIONS, 5, 2, 1.0, COST), wall(3, LEAST_ITERATIONS, 5, 5, 1.0, COST)
    assert planned(few - 0.1)[0] == 2
    assert planned(few) == (3, 2, LEAST_ITERATIONS)
    assert planned(every) == (3, 5, LEAST_ITERATIONS)
    assert planned(wall(3, 4, 5, 5, 1.0, COST)) == (3, 5, 4)


@pytest.mark.parametrize(
    ("left_s", "kept"),
    [(1000.0, 5), (4 * 10.0 + 4 * 5.0, 5), (4 * 10.0 + 2.5 * 5.0, 3), (4 * 10.0, 1), (0.0, 1)],
)
def test_skewed_launches_shrink_to_what_is_left(left_s: float, kept: int) -> None:
    # The first launch took 15 s, a third of it for the skewed routing: four more cost 10 s each without it.
    assert skew_launches(planned=5, launches=5, left_s=left_s + 1e-6, first_s=15.0, share=1 / 3) == kept


def test_layer_time_on_cpu_adds_expert_arithmetic_and_shares_cores() -> None:
    model = find_model("qwen3-30b-a3b")
    flops = 256 * 3 * (2 * 3 * 8 * 768 * 2048)  # tokens x (forward + backward) x SwiGLU products of 8 experts
    alone = layer_seconds(model, 256, 0.5, 1, 2)
    crowded = layer_seconds(model, 256, 0.5, 4, 2)
    assert alone - 0.5 == pytest.approx(flops / CPU_FLOPS_PER_CORE)
    assert crowded - 0.5 == pytest.approx(2 * (alone - 0.5))
