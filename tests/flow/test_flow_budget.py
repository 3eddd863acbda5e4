"""The time budget decides how much is measured: never fewer than two arms and two timed iterations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_dispatch.flow.budget import LEAST_ITERATIONS, MOST_ITERATIONS, Cost, layer_seconds, plan_decide
from moe_dispatch.workload.catalogue import find_model

COST = Cost(start_s=5.0, arm_s=1.0)


def wall(plan_arms: int, timed: int, launches: int, routings: int, iteration_s: float, cost: Cost) -> float:
    """Wall time by counting every pass on its own."""
    seconds = 0.0
    for _ in range(launches):
        seconds += cost.start_s
        for _ in range(plan_arms):
            seconds += cost.arm_s
        for _ in range(routings):
            seconds += iteration_s  # what all arms share is warmed up once
            for _ in range(plan_arms):
                seconds += iteration_s * (1 + timed)
    return seconds


@given(
    left=st.floats(0, 2000),
    launches=st.integers(1, 8),
    arms=st.integers(1, 8),
    routings=st.integers(1, 2),
    iteration=st.floats(1e-3, 5),
)
def test_plan_fits_or_is_the_least(left: float, launches: int, arms: int, routings: int, iteration: float) -> None:
    plan = plan_decide(left_s=left, launches=launches, arms=arms, routings=routings, iteration_s=iteration, cost=COST)
    timed = plan.visits * plan.iterations
    assert min(arms, 2) <= plan.arms <= arms
    assert LEAST_ITERATIONS <= timed <= MOST_ITERATIONS
    assert plan.visits % 2 == 0  # even and odd visits of the baseline are its own repeats
    assert plan.expected_s == pytest.approx(wall(plan.arms, timed, launches, routings, iteration, COST))
    least = (plan.arms, timed) == (min(arms, 2), LEAST_ITERATIONS)
    assert least or plan.expected_s <= left


def test_more_arms_come_before_more_iterations() -> None:
    three = wall(3, LEAST_ITERATIONS, 5, 2, 1.0, COST)
    plan = plan_decide(left_s=three, launches=5, arms=3, routings=2, iteration_s=1.0, cost=COST)
    assert (plan.arms, plan.visits * plan.iterations) == (3, LEAST_ITERATIONS)
    plan = plan_decide(left_s=three - 0.1, launches=5, arms=3, routings=2, iteration_s=1.0, cost=COST)
    assert plan.arms == 2


def test_layer_time_on_cpu_adds_expert_arithmetic_and_shares_cores() -> None:
    model = find_model("qwen3-30b-a3b")
    flops = 256 * 3 * (2 * 3 * 8 * 768 * 2048)  # tokens x (forward + backward) x SwiGLU products of 8 experts
    alone = layer_seconds(model, 256, 0.5, 1, 2, on_gpu=False)
    crowded = layer_seconds(model, 256, 0.5, 4, 2, on_gpu=False)
    assert alone - 0.5 == pytest.approx(flops / 100e9)
    assert crowded - 0.5 == pytest.approx(2 * (alone - 0.5))
