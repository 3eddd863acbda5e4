"""`smoke`: a few training steps through alltoall and every other dispatcher that is here, and why not for the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moe_dispatch.flow.events import Listener
from moe_dispatch.flow.train import TrainRequest, TrainResult, run_training

STAGE = "smoke"
STEPS = 5


@dataclass(frozen=True, kw_only=True)
class SmokeResult:
    """The runs, and whether all is well.

    Fields:
        passed: every arm that is here trained, and so did every one that was named.
    """

    runs: TrainResult
    passed: bool


def run_smoke(request: TrainRequest, listener: Listener) -> SmokeResult | str:
    """Train a few steps with each dispatcher; a backend that is absent is recorded with its gate.

    Raises:
        MoeDispatchError: see `flow.train.run_training`.
    """
    result = run_training(replace(request, stage=STAGE, absent="record"), listener)
    if isinstance(result, str):
        return result
    named = {text.partition(":")[0].strip() for text in request.measure.dispatchers}
    failed = [
        row
        for row in result.rows
        if row.status != "ok" and (row.status != "unavailable" or row.choice.dispatcher in named)
    ]
    return SmokeResult(runs=result, passed=not failed)
