"""From the outcome of one launch to RunRecords: one for each (arm, routing) that ended, well or badly.

An arm whose iterations are complete is `ok` even when another arm broke the launch later; an arm that was cut short by
another's failure gets no record here and is launched again.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections import defaultdict
from datetime import datetime, timezone
from typing import Any

import moe_dispatch
from moe_dispatch.bench.classify import Failure
from moe_dispatch.bench.events import (
    ArmMemory,
    ArmReady,
    ArmRefused,
    Fitted,
    ParityChecked,
    RoutingCounted,
    Started,
    Trained,
    TrainStep,
    Visit,
)
from moe_dispatch.bench.launch import LaunchOutcome
from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.train_records import ArmSteps, judge, training_fields
from moe_dispatch.evidence.ids import new_run_id
from moe_dispatch.evidence.record import Iteration, Memory, Performance, Provenance, RunRecord, RunStatus, Traffic
from moe_dispatch.evidence.training import Parity

PROOF = "constructed and passed the oracle on the measured group"


class LaunchView:
    """The events of one launch, sorted by what they are about."""

    def __init__(self, outcome: LaunchOutcome) -> None:
        self.started: Started | None = None
        self.tokens: int | None = None
        self.ready: dict[int, ArmReady] = {}
        self.refused: dict[int, ArmRefused] = {}
        self.traffic: dict[str, Traffic] = {}
        self.memory: dict[tuple[int, str], Memory] = {}
        self.iterations: dict[tuple[int, str], list[Iteration]] = defaultdict(list)
        self.steps: dict[tuple[int, str], list[TrainStep]] = defaultdict(list)
        self.trained: dict[tuple[int, str], Trained] = {}
        self.parity: dict[int, Parity] = {}
        for event in outcome.events:
            if isinstance(event, Started):
                self.started = event
            elif isinstance(event, Fitted):
                self.tokens = event.tokens
            elif isinstance(event, ArmReady):
                self.ready[event.arm] = event
            elif isinstance(event, ArmRefused):
                self.refused[event.arm] = event
            elif isinstance(event, RoutingCounted):
                self.traffic[event.routing] = event.traffic
            elif isinstance(event, ArmMemory):
                self.memory[event.arm, event.routing] = event.memory
            elif isinstance(event, Visit):
                self.iterations[event.arm, event.routing] += event.iterations
            elif isinstance(event, TrainStep):
                self.steps[event.arm, event.routing].append(event)
                self.iterations[event.arm, event.routing].append(event.iteration)
            elif isinstance(event, ParityChecked):
                self.parity[event.arm] = event.parity
            elif isinstance(event, Trained):
                self.trained[event.arm, event.routing] = event

    def arm_steps(self, arm: int, routing: str) -> ArmSteps:
        """What was seen of an arm's training."""
        return ArmSteps(
            steps=tuple(self.steps.get((arm, routing), ())),
            trained=self.trained.get((arm, routing)),
            parity=self.parity.get(arm),
            ready=self.ready.get(arm),
            started=self.started,
        )


def records_of(plan: BenchPlan, outcome: LaunchOutcome) -> list[RunRecord]:
    """Records of all (arm, routing) pairs of the plan that are settled by this outcome, in the plan's order."""
    view, processes = LaunchView(outcome), secrets.token_hex(6)
    found = (
        _record(plan, outcome, view, processes, arm, routing)
        for arm in range(len(plan.arms))
        for routing in plan.routings
    )
    return [record for record in found if record is not None]


def _record(
    plan: BenchPlan, outcome: LaunchOutcome, view: LaunchView, processes: str, arm: int, routing: str
) -> RunRecord | None:
    iterations = tuple(view.iterations.get((arm, routing), ()))
    hosts = view.started.host_of_rank if view.started else ()
    samples = Performance(iterations=iterations, host_of_rank=hosts) if iterations else None
    settled = _status(plan, outcome.failure, view, arm, len(iterations))
    if settled is None:
        return None
    status, reason, fix = settled
    seen = view.arm_steps(arm, routing)
    if plan.train is not None and status is RunStatus.OK:
        status, reason, fix = judge(plan.train, seen)
    ready, refused = view.ready.get(arm), view.refused.get(arm)
    tokens = view.tokens if view.tokens is not None else plan.fitted_tokens
    labels = {*(view.started.labels if view.started else ()), *plan.arms[arm].labels}
    if tokens is not None and tokens < plan.tokens_per_rank:
        labels.add("scaled_tokens")
    fields: dict[str, Any] = {"performance": samples} if status is RunStatus.OK else {"partial": samples}
    fields["correctness"] = refused.correctness if refused else ready.correctness if ready else None
    if plan.train is not None:
        labels |= plan.train.labels(routing)
        fields |= training_fields(plan, plan.train, arm, seen, status)
    return RunRecord(
        run_id=new_run_id(),
        session=plan.session,
        stage=plan.stage,
        launch=plan.launch,
        processes=processes,
        choice=plan.arms[arm].choice,
        status=status,
        contract=plan.contract(
            plan.canonical(routing),
            tokens,
            view.started.site if view.started else {},
            view.started.stack if view.started else {},
        ),
        labels=tuple(sorted(labels)),
        reason=reason,
        fix=fix,
        memory=view.memory.get((arm, routing)) if status is RunStatus.OK else None,
        traffic=view.traffic.get(routing),
        provenance=_provenance(outcome, ready),
        **fields,
    )


def _status(
    plan: BenchPlan, failure: Failure | None, view: LaunchView, arm: int, count: int
) -> tuple[RunStatus, str, str] | None:
    """(status, reason, fix), or None when this pair has to be launched again."""
    refused = view.refused.get(arm)
    if refused is not None:
        return refused.status, refused.reason, refused.fix
    if count == plan.planned_iterations:
        return RunStatus.OK, "", ""
    if failure is None:
        return None
    if failure.arm == arm or failure.status is RunStatus.INTERRUPTED:
        reason = failure.reason if count else f"{failure.reason} (no iteration under this routing was finished)"
        return failure.status, reason, failure.fix
    return None


def _provenance(outcome: LaunchOutcome, ready: ArmReady | None) -> Provenance:
    return Provenance(
        created=datetime.now(timezone.utc),
        tool_version=moe_dispatch.__version__,
        host=socket.gethostname(),
        command=" ".join(["moe-dispatch", *sys.argv[1:]]) if sys.argv[0].endswith("moe-dispatch") else "",
        environment=dict(os.environ) | outcome.environment,
        provider=ready.provider if ready else "",
        provider_version=ready.provider_version if ready else "",
        proof=PROOF if ready else "",
    )
