"""How far a training comparison goes: a screen, a decision, or one that accepts the dispatcher for the job.

Short runs screen; a decision needs steps beyond warm-up; acceptance is a run of the protocol's length under the routing
that the job has, because forced balance is a benchmark only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from moe_dispatch.decide.contract_table import TRAINING_LEVEL
from moe_dispatch.evidence.record import Model, RunRecord

DECISION_STEPS = 20
"""Steady steps of each launch from which on a comparison is more than a screen."""
ACCEPTED_STEPS = 50
"""Training steps of each launch, warm-up included, that acceptance needs."""
NATURAL = "natural"


class AcceptanceLevel(str, Enum):
    """Weakest first."""

    SCREEN = "screen"
    DECISION = "decision"
    ACCEPTED = "accepted"


class Acceptance(Model):
    """Level of a comparison of training steps.

    Fields:
        steady_steps: fewest timed steps of a launch.
        run_steps: fewest steps, warm-up included, that a launch ran.
        missing: what the next level needs.
    """

    level: AcceptanceLevel
    steady_steps: int
    run_steps: int
    routing: str | None
    missing: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Sentence part for the statement."""
        steps = f"{self.steady_steps} steady of {self.run_steps} steps a launch, {self.routing or 'unknown'} routing"
        return f"{self.level.value} ({steps})"


def acceptance(records: Iterable[RunRecord]) -> Acceptance | None:
    """Level over the compared records; None where they are no training steps."""
    steps = [record for record in records if record.contract.measure.get("level") == TRAINING_LEVEL]
    if not steps:
        return None
    steady, ran = min(map(_steady, steps)), min(map(_ran, steps))
    routings = {record.contract.workload.get("routing") for record in steps}
    routing = str(routings.pop()) if len(routings) == 1 and None not in routings else None
    missing = []
    if steady < DECISION_STEPS:
        missing.append(f"at least {DECISION_STEPS} steady steps in each launch ({steady} here)")
    if ran < ACCEPTED_STEPS:
        missing.append(f"at least {ACCEPTED_STEPS} training steps in each launch ({ran} here)")
    if routing != NATURAL:
        missing.append(f"natural routing ({routing or 'unknown'} here)")
    level = AcceptanceLevel.SCREEN if steady < DECISION_STEPS else AcceptanceLevel.DECISION
    if not missing:
        level = AcceptanceLevel.ACCEPTED
    return Acceptance(level=level, steady_steps=steady, run_steps=ran, routing=routing, missing=tuple(missing))


def _steady(record: RunRecord) -> int:
    """Timed steps: a printed line stands for as many as were averaged in it."""
    assert record.performance is not None
    return len(record.performance.iterations) * _interval(record)


def _ran(record: RunRecord) -> int:
    """Steps of the attempt, from its first printed line to its last."""
    printed = record.training.iterations if record.training is not None else ()
    if not printed:
        return _steady(record)
    numbers = [one.iteration for one in printed if one.attempt == printed[-1].attempt]
    return max(_steady(record), max(numbers) - min(numbers) + _interval(record))


def _interval(record: RunRecord) -> int:
    value = record.training.log_interval if record.training is not None else record.contract.measure.get("log_interval")
    return value if isinstance(value, int) and value > 0 else 1
