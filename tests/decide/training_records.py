"""Training runs with a known truth: complete contracts, separate launches, one record a launch."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np
from decide_records import SIMPLICITY, choice

from moe_dispatch.decide.contract_table import contract_table
from moe_dispatch.decide.verdict import Verdict, decide
from moe_dispatch.evidence.ids import new_run_id
from moe_dispatch.evidence.record import (
    Contract,
    Correctness,
    Iteration,
    Memory,
    Performance,
    Provenance,
    RunRecord,
    RunStatus,
)
from moe_dispatch.evidence.training import Activation, TrainingIteration, TrainingRun, Window

LEVEL = "training_step"
KNOWN: dict[str, Any] = {
    "measure.level": LEVEL,
    "measure.log_interval": 1,
    "site.hosts": ["n1", "n2"],
    "workload.routing": "natural",
    "workload.tp": 1,
    "workload.ep": 16,
    "workload.router_dtype": "fp32",
    "workload.permute_fusion": True,
}
"""Over the fields that a training step requires, which are all known and equal."""


def run(
    arm: str,
    steps_ms: Any = (),
    *,
    status: RunStatus = RunStatus.OK,
    effective: str | None = None,
    proof: Any = "deduced",
    warmup: int = 10,
    labels: tuple[str, ...] = (),
    reason: str = "",
    memory: int | None = None,
    stage: str = "training",
    **fields: Any,
) -> RunRecord:
    """One launch. Fields by name with `__` for the dot (`workload__tp=4`); None is unknown, ... leaves it out."""
    contract: dict[str, dict[str, Any]] = {"workload": {}, "measure": {}, "site": {}, "stack": {}}
    known = dict.fromkeys(contract_table().required(frozenset({LEVEL})), "given") | KNOWN
    changed = {name.replace("__", ".", 1): value for name, value in fields.items()}
    for name, value in (known | changed).items():
        section, _, field = name.partition(".")
        if value is not ...:
            contract[section][field] = value
    ok = status is RunStatus.OK
    timed = tuple(
        Iteration(pass_index=0, latency_us={"total": float(ms) * 1e3}, step=warmup + index)
        for index, ms in enumerate(steps_ms, 1)
    )
    samples = Performance(iterations=timed, host_of_rank=()) if timed else None
    printed = tuple(TrainingIteration(iteration=number, elapsed_ms=1.0) for number in range(1, warmup + len(timed) + 1))
    effect = choice(arm).dispatcher if effective is None else effective
    identity = new_run_id()
    return RunRecord(
        run_id=identity,
        session=f"log-{identity}",
        stage=stage,
        launch=0,
        processes=identity,
        choice=choice(arm),
        status=status,
        contract=Contract(**contract),
        labels=labels,
        reason=reason or ("" if ok else f"{status.value} for a reason"),
        correctness=Correctness(passed=True) if ok else None,
        memory=Memory(allocated_peak_bytes=memory) if memory is not None else None,
        performance=samples if ok else None,
        partial=None if ok else samples,
        training=TrainingRun(
            effective=effect, activation=Activation(level=proof), window=Window(rule="test"), iterations=printed
        ),
        provenance=Provenance(created=datetime.now(timezone.utc), tool_version="0", host="login"),
    )


def runs(
    arm: str,
    mean_ms: float,
    launches: int = 5,
    *,
    steps: int = 40,
    between: float = 0.003,
    within: float = 0.005,
    seed: int = 0,
    **options: Any,
) -> list[RunRecord]:
    """Launches whose medians and steps are log-normal with these spreads."""
    rng = np.random.default_rng([seed, *arm.encode()])
    return [
        run(arm, mean_ms * np.exp(rng.normal(0, between) + rng.normal(0, within, steps)), **options)
        for _ in range(launches)
    ]


def judged(*groups: Any, **options: Any) -> Verdict:
    records = [one for group in groups for one in ([group] if isinstance(group, RunRecord) else group)]
    return decide(records, simplicity=SIMPLICITY, **options)


def ids(verdict: Verdict) -> set[str]:
    return {finding.id for finding in verdict.findings}
