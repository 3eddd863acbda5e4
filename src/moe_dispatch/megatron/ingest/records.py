"""From a run that was read to its RunRecord: one run is one launch, and only status `ok` carries performance."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

import moe_dispatch
from moe_dispatch.core.choice import Choice, KnobValue
from moe_dispatch.core.registry import load_backends
from moe_dispatch.evidence.ids import new_run_id
from moe_dispatch.evidence.record import Correctness, Iteration, Performance, Provenance, RunRecord, RunStatus
from moe_dispatch.evidence.training import ExposedCommunication, TrainingIteration, TrainingRun
from moe_dispatch.megatron.fields import load_fields
from moe_dispatch.megatron.ingest.activation import load_activation
from moe_dispatch.megatron.ingest.contract import contract_of, labels_of
from moe_dispatch.megatron.ingest.metrics import logged_tflops, memory_of, metrics_of
from moe_dispatch.megatron.ingest.run import Run
from moe_dispatch.megatron.ingest.timeline import Printed
from moe_dispatch.megatron.settings_fields import settings_fields

STAGE = "training"
_CHECKED = "loss health of the training run; the dispatcher was not compared with an oracle"


def record_of(run: Run) -> RunRecord:
    """The record of one run.

    The same log gives the same session and processes, so reading it twice adds no launch to a comparison.
    """
    status = run.judged.status
    facts = {"framework": run.facts.framework, "world": _world(run), "versions": run.facts.versions}
    samples = _samples(run)
    digest = _digest(run)
    fields: dict[str, Any] = {"performance": samples} if status is RunStatus.OK else {"partial": samples}
    choice = _choice(run)
    return RunRecord(
        run_id=new_run_id(),
        session=f"log-{digest}",
        stage=STAGE,
        launch=0,
        processes=digest,
        choice=choice,
        status=status,
        contract=contract_of(run.settings, facts, run.timeline, run.request.environment, run.request.gpu),
        labels=tuple(sorted(labels_of(run.settings) | _arm_labels(choice))),
        reason=run.judged.reason,
        fix=run.judged.fix,
        correctness=_correctness(run),
        memory=memory_of(tuple(run.facts.memory)),
        training=_training(run),
        provenance=_provenance(run),
        **fields,
    )


def _choice(run: Run) -> Choice:
    """Dispatcher and the knobs that its configuration set."""
    spec = load_backends().get(run.dispatcher)
    knobs: dict[str, KnobValue] = {}
    effective = run.effective
    if spec is not None and spec.megatron is not None and effective is not None and effective.effective == spec.name:
        if spec.megatron.sm_knob and effective.sm_count is not None and effective.sm_field is not None:
            knobs[spec.megatron.sm_knob] = effective.sm_count
        for knob, field in load_fields().backend(spec.megatron.flex_backend).knob_fields.items():
            value = run.settings.get(field)
            known = settings_fields().get(field)
            default = known.default_in(run.facts.versions.get("megatron_core")) if known is not None else None
            if isinstance(value, int) and value != default:
                knobs[knob] = value
    return Choice(dispatcher=run.dispatcher, knobs=knobs)


def _arm_labels(choice: Choice) -> set[str]:
    """`untuned` where the SM count was left to its default."""
    spec = load_backends().get(choice.dispatcher)
    knob = spec.megatron.sm_knob if spec is not None and spec.megatron is not None else None
    return {"untuned"} if knob and knob not in choice.knobs else set()


def _world(run: Run) -> int | None:
    return run.settings.integer("world_size") or run.request.ranks


def _samples(run: Run) -> Performance | None:
    """Iterations of the window as samples; an attempt is a visit of its own."""
    iterations = tuple(
        Iteration(pass_index=one.attempt, latency_us={"total": one.line.elapsed_ms * 1e3}, step=one.line.iteration)
        for one in (run.timeline.counted if run.judged.status is RunStatus.OK else run.timeline.printed)
        if one.line.elapsed_ms
    )
    return Performance(iterations=iterations, host_of_rank=()) if iterations else None


def _correctness(run: Run) -> Correctness | None:
    if not run.timeline.printed:
        return None
    checks = {
        "loss_finite": run.loss.last is not None and not run.loss.not_finite,
        "no_skip_in_window": not any(one.line.skipped for one in run.timeline.counted),
    }
    return Correctness(passed=all(checks.values()), checks=checks, detail=_CHECKED)


def _training(run: Run) -> TrainingRun:
    effective, facts, line = run.effective, run.facts, run.timeline
    ok = run.judged.status is RunStatus.OK
    window = {(one.attempt, one.line.iteration) for one in line.counted} if ok else set()
    metrics = metrics_of(line.counted, facts.steps, run.settings, _world(run), run.request.gpu) if ok else None
    return TrainingRun(
        framework=facts.framework,
        core_version=facts.versions.get("megatron_core"),
        requested=run.requested,
        effective=(effective.effective or "") if effective is not None else "",
        sm_count=effective.sm_count if effective is not None else None,
        sm_field=(effective.sm_field or "") if effective is not None else "",
        seen=run.settings.seen(),
        activation=run.activation,
        outcome=run.judged.outcome,
        planned_iterations=line.planned,
        log_interval=line.log_interval,
        restarts=line.restarts,
        iterations=tuple(_iteration(run, one, (one.attempt, one.line.iteration) in window) for one in line.printed),
        window=line.window,
        metrics=metrics,
        loss=run.loss,
        memory=tuple(sorted(facts.memory, key=lambda one: (one.after_iteration, one.rank))),
        parameters=dict(sorted(facts.parameters.items())),
        exposed=_exposed(run),
        files=tuple(facts.files),
        unattributed_lines=facts.unattributed,
    )


def _iteration(run: Run, one: Printed, in_window: bool) -> TrainingIteration:
    line = one.line
    return TrainingIteration(
        iteration=line.iteration,
        attempt=one.attempt,
        elapsed_ms=line.elapsed_ms,
        tflops_per_gpu_logged=logged_tflops(line, run.facts.steps, run.timeline.printed),
        lm_loss=_finite(line.lm_loss),
        grad_norm=_finite(line.grad_norm),
        skipped=int(line.skipped) if line.skipped is not None else None,
        nan=int(line.nan) if line.nan is not None else None,
        in_window=in_window,
    )


def _finite(value: float | None) -> float | None:
    """JSON has no NaN; that a value was not finite is kept in the loss health."""
    return value if value is not None and abs(value) < float("inf") else None


def _exposed(run: Run) -> ExposedCommunication | None:
    return run.profile.exposed.get(run.dispatcher) if run.profile is not None else None


def _provenance(run: Run) -> Provenance:
    backend = load_activation().backends.get(run.dispatcher)
    proven = run.activation.proven
    return Provenance(
        created=datetime.now(timezone.utc),
        tool_version=moe_dispatch.__version__,
        host="",
        environment=dict(run.request.environment or {}),
        provider=backend.provider if backend is not None and proven else "",
        proof=f"{run.activation.level}: {run.activation.evidence[0]}" if run.activation.evidence else "",
    )


def _digest(run: Run) -> str:
    """Of what the run printed, not of how its files are named or cut: 12 hexadecimal digits."""
    content = sorted(repr(line) for line in (*run.facts.lines.values(), *run.facts.conflicts))
    settings = [repr((dump.stage, sorted(dump.values.items(), key=repr))) for dump in run.facts.dumps]
    text = "\n".join((*content, *settings, run.judged.outcome.root, run.request.arm or ""))
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()[:12]
