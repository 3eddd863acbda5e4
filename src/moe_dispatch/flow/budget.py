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

CPU_FLOPS_PER_CORE = 75e9
"""Rough rate at which one server core runs the bf16 products of a layer's experts, FLOP/s."""

LEAST_SKEW_LAUNCHES = 2
"""Launches that also measure the skewed routing when the budget does not hold it in all of them."""

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
        skew_launches: launches, the first ones, that also measure the skewed routing.
        skew_share: part of a launch with the skewed routing that this routing takes.
        expected_s: estimated wall time of all launches.
    """

    arms: int
    visits: int
    iterations: int
    skew_launches: int
    skew_share: float
    expected_s: float


def layer_seconds(model: ModelShape, tokens: int, exchange_s: float, ranks_on_node: int, cores: int) -> float:
    """Estimated time of one forward and backward pass of the MoE layer on `tokens` a rank, on a CPU.

    Args:
        exchange_s: measured time of dispatch and combine alone.
    """
    share = min(1.0, cores / ranks_on_node)
    return exchange_s + tokens * moe_layer_flops(model).forward_backward / (CPU_FLOPS_PER_CORE * share)


def plan_decide(*, left_s: float, launches: int, arms: int, skewed: bool, iteration_s: float, cost: Cost) -> DecidePlan:
    """What fits, in this order: more arms than two, the skewed routing in every launch, more iterations.

    Two arms (if there are two), two iterations and the skewed routing in two launches are planned whatever the budget.
    """

    def wall(count: int, timed: int, skew_launches: int) -> float:
        # Every routing also takes one pass that warms up what all arms share, and one warm-up of each arm.
        passes = (launches + skew_launches) * (1 + count * (1 + timed))
        return launches * (cost.start_s + count * cost.arm_s) + passes * iteration_s

    few = min(LEAST_SKEW_LAUNCHES, launches) if skewed else 0
    kept = next((n for n in range(arms, 2, -1) if wall(n, LEAST_ITERATIONS, few) <= left_s), min(arms, 2))
    skew_launches = launches if skewed and wall(kept, LEAST_ITERATIONS, launches) <= left_s else few
    timed = LEAST_ITERATIONS
    while timed + 2 <= MOST_ITERATIONS and wall(kept, timed + 2, skew_launches) <= left_s:
        timed += 2
    visits = 4 if timed % 4 == 0 else 2
    return DecidePlan(
        arms=kept,
        visits=visits,
        iterations=timed // visits,
        skew_launches=skew_launches,
        skew_share=1 - wall(kept, timed, 0) / wall(kept, timed, launches),
        expected_s=wall(kept, timed, skew_launches),
    )


def skew_launches(planned: int, launches: int, left_s: float, first_s: float, share: float) -> int:
    """How many launches measure the skewed routing, now that the first one has: no more than planned, or than fit.

    Args:
        left_s: what is left of the budget after the first launch.
        first_s: wall time of the first launch, skewed routing included.
        share: part of it that the skewed routing took.
    """
    skew_s = first_s * share
    plain_s = first_s - skew_s
    extra = int((left_s - (launches - 1) * plain_s) / skew_s) if skew_s > 0 else planned
    return max(1, min(planned, 1 + extra))


def median_total_s(record: RunRecord) -> float:
    """Median of one ok record's iterations, seconds."""
    assert record.performance is not None
    totals = sorted(iteration.latency_us["total"] for iteration in record.performance.iterations)
    middle = len(totals) // 2
    return (totals[middle] if len(totals) % 2 else (totals[middle - 1] + totals[middle]) / 2) / 1e6
