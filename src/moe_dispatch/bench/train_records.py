"""From the training steps of an arm to what its record says: the steady window, loss health, throughput, parity.

Definitions of the metrics are those of `evidence.training`; model FLOPs by workload/flops.py. Imports no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moe_dispatch.bench.events import ArmReady, Started, Trained, TrainStep
from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.train_plan import WARMUP_RULE, TrainPlan, warmup_steps
from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.evidence.record import Correctness, Performance, RunStatus
from moe_dispatch.evidence.training import (
    Activation,
    LossHealth,
    Parity,
    TrainingIteration,
    TrainingMetrics,
    TrainingRun,
    Window,
)
from moe_dispatch.site.hardware import hardware_of_device
from moe_dispatch.workload.flops import model_flops_per_step, tflops_per_gpu

FRAMEWORK = "moe-dispatch"
OUTLIER = 1.5
"""Times the median from which a step of the window is named an outlier (it stays in)."""


@dataclass(frozen=True, kw_only=True)
class ArmSteps:
    """Events of one arm under one routing; `trained` is None when it did not finish."""

    steps: tuple[TrainStep, ...]
    trained: Trained | None
    parity: Parity | None
    ready: ArmReady | None
    started: Started | None


def judge(train: TrainPlan, seen: ArmSteps) -> tuple[RunStatus, str, str]:
    """(status, reason, fix) of an arm that did all its steps."""
    if seen.trained is None:
        return RunStatus.TRUNCATED, "the launch ended before the arm's memory was read", "run it again"
    lost = [step.iteration.step for step in seen.steps if step.loss is None or step.grad_norm is None]
    if lost:
        numbers = ", ".join(map(str, lost[:5]))
        reason = f"the loss or the gradient norm is not finite at step {numbers}"
        return RunStatus.INCORRECT, reason, "compare with alltoall on the same text, and lower --learning-rate"
    return RunStatus.OK, "", ""


def training_fields(plan: BenchPlan, train: TrainPlan, arm: int, seen: ArmSteps, status: RunStatus) -> dict[str, Any]:
    """Fields of the RunRecord that training decides: performance or partial, correctness, training."""
    ok = status is RunStatus.OK
    window = tuple(step.iteration for step in seen.steps if _in_window(train, step))
    shown = window if ok else tuple(step.iteration for step in seen.steps)
    hosts = seen.started.host_of_rank if seen.started is not None else ()
    samples = Performance(iterations=shown, host_of_rank=hosts) if shown else None
    fields: dict[str, Any] = {"performance": samples} if ok else {"partial": samples}
    if seen.steps or seen.parity is not None:
        fields["training"] = _training(plan, train, arm, seen, ok)
    if seen.ready is not None:
        fields["correctness"] = _correctness(seen.ready.correctness, seen)
    return fields


def check_parity(correctness: Correctness, parity: Parity) -> Correctness:
    """The oracle's outcome with that of the parity check."""
    checks = {"step0_loss": parity.loss_passed}
    checks |= {f"parity_{name}": one.passed for name, one in parity.distances.items()}
    far = [
        f"{name} {'not finite' if one.distance is None else f'{one.distance:.2e}'} (allowed {one.allowed:.2e})"
        for name, one in parity.distances.items()
        if not one.passed
    ]
    if not parity.loss_passed:
        loss = "not finite" if parity.step0_loss is None else f"{parity.step0_loss:.6f}"
        far.append(f"loss {loss} (reference {parity.reference_loss:.6f} +- {parity.loss_bound:.1e})")
    detail = correctness.detail or (f"too far from the float32 reference: {', '.join(far)}" if far else "")
    return correctness.model_copy(
        update={
            "passed": correctness.passed and parity.passed,
            "checks": {**correctness.checks, **checks},
            "detail": detail,
        }
    )


def _correctness(oracle: Correctness, seen: ArmSteps) -> Correctness:
    checked = check_parity(oracle, seen.parity) if seen.parity is not None else oracle
    finite = all(step.loss is not None and step.grad_norm is not None for step in seen.steps)
    return checked.model_copy(
        update={"passed": checked.passed and finite, "checks": {**checked.checks, "loss_finite": finite}}
    )


def _training(plan: BenchPlan, train: TrainPlan, arm: int, seen: ArmSteps, ok: bool) -> TrainingRun:
    name = plan.arms[arm].choice.dispatcher
    done = seen.trained
    return TrainingRun(
        framework=FRAMEWORK,
        requested=name,
        effective=name,
        activation=_activation(seen),
        planned_iterations=train.steps,
        iterations=tuple(_iteration(step, ok and _in_window(train, step)) for step in seen.steps),
        window=Window(
            rule=_rule(train),
            first=train.warmup + 1,
            last=train.steps,
            needed=train.steps - train.warmup,
            found=sum(_in_window(train, step) for step in seen.steps),
        ),
        metrics=_metrics(plan, train, seen) if ok else None,
        loss=_health(seen.steps),
        memory=done.memory if done is not None else (),
        parameters=done.parameters if done is not None else {},
        exposed=done.exposed if done is not None else None,
        parity=seen.parity,
    )


def _in_window(train: TrainPlan, step: TrainStep) -> bool:
    return step.iteration.step is not None and step.iteration.step > train.warmup


def _rule(train: TrainPlan) -> str:
    declared = f"{train.window}, all of them"
    return f"{declared}; warm-up is {WARMUP_RULE}" if train.warmup == warmup_steps(train.steps) else declared


def _activation(seen: ArmSteps) -> Activation:
    if seen.trained is None or seen.ready is None:
        return Activation(level="none")
    calls = ", ".join(f"{count} {name}" for name, count in sorted(seen.trained.calls.items()))
    return Activation(level="traced", evidence=(f"calls of {seen.ready.provider} on rank 0: {calls}",))


def _iteration(step: TrainStep, in_window: bool) -> TrainingIteration:
    return TrainingIteration(
        iteration=step.iteration.step or 0,
        elapsed_ms=step.iteration.latency_us["total"] / 1e3,
        lm_loss=step.loss,
        grad_norm=step.grad_norm,
        skipped=int(not step.updated),
        nan=int(step.loss is None),
        in_window=in_window,
    )


def _health(steps: Sequence[TrainStep]) -> LossHealth:
    finite = [step.loss for step in steps if step.loss is not None]
    return LossHealth(
        first=finite[0] if finite else None,
        last=finite[-1] if finite else None,
        not_finite=tuple(s.iteration.step or 0 for s in steps if s.loss is None or s.grad_norm is None),
        skipped=sum(not step.updated for step in steps),
    )


def _metrics(plan: BenchPlan, train: TrainPlan, seen: ArmSteps) -> TrainingMetrics | None:
    timed = [(s.iteration.step or 0, s.iteration.latency_us["total"] / 1e3) for s in seen.steps if _in_window(train, s)]
    if not timed:
        return None
    times = [elapsed for _, elapsed in timed]
    mean, median = statistics.fmean(times), statistics.median(times)
    device = str(seen.started.site.get("device_name", "")) if seen.started is not None else ""
    gpu = hardware_of_device(device)
    try:
        flops = model_flops_per_step(plan.model, train.seq_length, train.global_batch)
    except WorkloadError:
        flops = None
    tflops = tflops_per_gpu(flops, mean / 1e3, plan.world) if flops is not None else None
    return TrainingMetrics(
        mean_ms=mean,
        median_ms=median,
        spread=(max(times) - min(times)) / median,
        outliers=tuple(step for step, elapsed in timed if elapsed > OUTLIER * median),
        tokens_per_s_per_gpu=train.seq_length * train.global_batch / (mean / 1e3 * plan.world),
        tflops_per_gpu=tflops,
        mfu=tflops / gpu.bf16_tflops if tflops is not None and gpu is not None and plan.dtype == "bfloat16" else None,
        peak_tflops=gpu.bf16_tflops if gpu is not None else None,
        peak_of=gpu.title if gpu is not None else "",
    )
