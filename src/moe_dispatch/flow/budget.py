"""How the time budget is split: how many iterations and which arms the deciding stage can afford.

Deciding needs its launches more than its iterations (launches are what the bootstrap resamples first), and the baseline
with the best screened dispatcher more than the rest. What is estimated here decides only how much is measured, never a
verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.workload.flops import moe_layer_flops
from moe_dispatch.workload.model import ModelShape

CPU_FLOPS_PER_CORE = 100e9
"""Rough rate of bf16 matrix products on one server core, FLOP/s; expert products of a layer are priced with it."""

SCREEN_SHARE = 0.12
"""Share of the budget that the timed part of screening may take."""

LEAST_ITERATIONS, MOST_ITERATIONS = 2, 20
"""Timed iterations of an arm in one launch under one routing: two visits at least, for A against A."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a launch besides its iterations: start of the processes, and building and checking one arm."""

    start_s: float
    arm_s: float


@dataclass(frozen=True, kw_only=True)
class DecidePlan:
    """What the deciding stage measures.

    Fields:
        arms: how many arms, the baseline and the screened ones in order of speed.
        visits, iterations: passes over the arms, and iterations in each.
        expected_s: estimated wall time of all launches.
    """

    arms: int
    visits: int
    iterations: int
    expected_s: float


def layer_seconds(
    model: ModelShape, tokens: int, exchange_s: float, ranks_on_node: int, cores: int, *, on_gpu: bool
) -> float:
    """Estimated time of one forward and backward pass of the MoE layer on `tokens` a rank."""
    if on_gpu:
        return 3 * exchange_s
    share = min(1.0, cores / ranks_on_node)
    return exchange_s + tokens * moe_layer_flops(model).forward_backward / (CPU_FLOPS_PER_CORE * share)


def plan_decide(
    *, left_s: float, launches: int, arms: int, routings: int, iteration_s: float, cost: Cost
) -> DecidePlan:
    """Most arms that fit with the fewest iterations, then as many iterations as fit.

    Two arms are always planned (if there are two), whatever the budget.
    """

    def wall(count: int, timed: int) -> float:
        # Every routing also takes one pass that warms up what all arms share, and one warm-up of each arm.
        passes = routings * (1 + count * (1 + timed))
        return launches * (cost.start_s + count * cost.arm_s + passes * iteration_s)

    kept = next((n for n in range(arms, 2, -1) if wall(n, LEAST_ITERATIONS) <= left_s), min(arms, 2))
    timed = LEAST_ITERATIONS
    while timed + 2 <= MOST_ITERATIONS and wall(kept, timed + 2) <= left_s:
        timed += 2
    visits = 4 if timed % 4 == 0 else 2
    return DecidePlan(arms=kept, visits=visits, iterations=timed // visits, expected_s=wall(kept, timed))


def median_total_s(record: RunRecord) -> float:
    """Median of one ok record's iterations, seconds."""
    assert record.performance is not None
    totals = sorted(iteration.latency_us["total"] for iteration in record.performance.iterations)
    middle = len(totals) // 2
    return (totals[middle] if len(totals) % 2 else (totals[middle - 1] + totals[middle]) / 2) / 1e6
