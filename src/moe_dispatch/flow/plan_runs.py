"""The logs of a plan's folder as records: the plan says what each log is, so a comparison needs no more input."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moe_dispatch.core.errors import StoreError
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.evidence.record import Contract, Memory, Performance, RunRecord, RunStatus
from moe_dispatch.evidence.training import TrainingMetrics, TrainingRun
from moe_dispatch.megatron.ingest.records import record_of
from moe_dispatch.megatron.ingest.run import RunRequest, read_run
from moe_dispatch.megatron.ingest.timeline import WindowRequest
from moe_dispatch.megatron.plan.model import PLAN_FILE, MatchedPlan, PlannedArm, Run, Stage, read_plan
from moe_dispatch.site.hardware import Hardware, load_hardware

_PREFERENCE: tuple[Stage, ...] = ("decide", "accept", "natural", "screen")
"""Which stage is meant when none is named: the first that has logs."""


def records_of_plan(folder: Path, stage: str | None = None) -> tuple[list[RunRecord], list[Finding]]:
    """Records of one stage of a plan, and a finding for every run without a log.

    The two visits of an arm in one launch make one record, so that the baseline's own repeats are seen where the
    comparison is; a visit that failed stays a record of its own.

    Args:
        stage: None takes the deciding stage, or the first other one that has logs.

    Raises:
        UsageError: the plan cannot be read, or has no such stage.
        StoreError: no run of it has a log yet.
    """
    plan = read_plan(folder)
    logged = {run.stage for run in plan.runs if (folder / run.log).is_file()}
    if not logged:
        raise StoreError(f"{folder} is a plan without logs", "submit its job.sbatch, then compare")
    chosen = stage or next(name for name in _PREFERENCE if name in logged)
    runs = [run for run in plan.runs if run.stage == chosen]
    if not runs:
        stages = ", ".join(dict.fromkeys(run.stage for run in plan.runs))
        raise StoreError(f"{folder / PLAN_FILE} has no stage {chosen!r}", f"it has: {stages}")
    gpu = next((one for name, one in load_hardware().items() if plan.site.startswith(f"{name}x")), None)
    visits: dict[tuple[int, str], list[RunRecord]] = defaultdict(list)
    missing = []
    for run in runs:
        if not (folder / run.log).is_file():
            missing.append(run.log)
            continue
        visits[run.launch, run.arm].append(_record(plan, run, folder, gpu))
    records = [record for together in visits.values() for record in _merged(together)]
    return records, _missing(missing, chosen)


def _record(plan: MatchedPlan, run: Run, folder: Path, gpu: Hardware | None) -> RunRecord:
    arm: PlannedArm = plan.arm(run.arm)
    request = RunRequest(
        logs=(folder / run.log,),
        arm=arm.choice.dispatcher,
        gpu=gpu,
        environment=arm.environment,
        window=WindowRequest.parse(f"{plan.warm_up_steps + 1}-{arm.steps}"),
    )
    session = f"plan-{folder.resolve().name}"
    record = record_of(read_run(request))
    place = {"session": session, "stage": run.stage, "launch": run.launch, "processes": f"{session}-{run.launch}"}
    visits = len({one.position for one in plan.runs if (one.stage, one.launch, one.arm) == (run.stage, 0, run.arm)})
    contract = _with_facts(record.contract, folder / f"{run.log}.facts")
    contract = contract.model_copy(update={"measure": {**contract.measure, "visits": visits}})
    return record.model_copy(update={**place, "contract": contract})


def _with_facts(contract: Contract, path: Path) -> Contract:
    """The contract with what `run.sh` wrote down beside the log; what the log itself says stands."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return contract
    facts = {name: value.strip() for name, _, value in (line.partition("=") for line in lines) if value.strip()}
    hosts = facts.get("hosts", "").split()
    site: dict[str, Any] = {"transport": "nccl", "cpu_affinity": facts.get("cpu_affinity")}
    site |= {"hosts": hosts, "nodes": len(hosts)} if hosts else {}
    stack = {"driver": facts.get("driver"), "container": facts.get("container")}
    return contract.model_copy(
        update={
            "site": {**contract.site, **_where_unknown(contract.site, site)},
            "stack": {**contract.stack, **_where_unknown(contract.stack, stack)},
        }
    )


def _where_unknown(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if known.get(name) is None and value is not None}


def _merged(visits: list[RunRecord]) -> list[RunRecord]:
    """One record of all visits when all are good and alike; else each as it is."""
    first = visits[0]
    alike = all(one.status is RunStatus.OK and one.contract == first.contract for one in visits)
    if len(visits) == 1 or not alike:
        return [
            one if index == 0 else one.model_copy(update={"processes": f"{one.processes}-{index}"})
            for index, one in enumerate(visits)
        ]
    performances = [one.performance for one in visits if one.performance is not None]
    iterations = tuple(
        iteration.model_copy(update={"pass_index": visit})
        for visit, performance in enumerate(performances)
        for iteration in performance.iterations
    )
    merged = Performance(iterations=iterations, host_of_rank=performances[0].host_of_rank)
    update: dict[str, Any] = {"performance": merged, "memory": _largest([one.memory for one in visits])}
    if first.training is not None and first.training.metrics is not None:
        metrics = _metrics(first.training.metrics, merged, [one.training for one in visits])
        update["training"] = first.training.model_copy(update={"metrics": metrics})
    return [first.model_copy(update=update)]


def _metrics(first: TrainingMetrics, merged: Performance, runs: list[TrainingRun | None]) -> TrainingMetrics:
    """Metrics of the first visit, brought to the step times of all."""
    times = [iteration.latency_us["total"] / 1e3 for iteration in merged.iterations]
    mean, median = statistics.fmean(times), statistics.median(times)
    scaled = {
        name: None if value is None else value * first.mean_ms / mean
        for name, value in (
            ("tokens_per_s_per_gpu", first.tokens_per_s_per_gpu),
            ("tflops_per_gpu", first.tflops_per_gpu),
            ("mfu", first.mfu),
        )
    }
    logged = [run.metrics.tflops_per_gpu_logged for run in runs if run is not None and run.metrics is not None]
    known = [value for value in logged if value is not None]
    return first.model_copy(
        update={
            **scaled,
            "mean_ms": mean,
            "median_ms": median,
            "spread": (max(times) - min(times)) / median,
            "outliers": tuple(sorted({step for run in runs if run and run.metrics for step in run.metrics.outliers})),
            "tflops_per_gpu_logged": statistics.fmean(known) if len(known) == len(runs) else None,
        }
    )


def _largest(memories: list[Memory | None]) -> Memory | None:
    known = [memory for memory in memories if memory is not None]
    if not known:
        return None
    values = {
        name: max((value for value in (getattr(memory, name) for memory in known) if value is not None), default=None)
        for name in Memory.model_fields
    }
    return Memory(**values)


def _missing(logs: list[str], stage: str) -> list[Finding]:
    if not logs:
        return []
    shown = ", ".join(logs[:3]) + (f" and {len(logs) - 3} more" if len(logs) > 3 else "")
    return [
        Finding(
            id="planned-run-missing",
            severity=Severity.WARNING,
            message=f"{len(logs)} runs of stage {stage} have no log: {shown}",
            why="a launch without all of its arms says less, and a winner needs five",
            advice=(f"submit `job.sbatch {stage}` again: only what is missing or failed is run",),
        )
    ]
