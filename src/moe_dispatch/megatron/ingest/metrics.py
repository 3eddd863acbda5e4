"""Step time, throughput, MFU, loss health and memory of the steady window; nothing in it is dropped.

Model FLOPs follow Megatron's formula (`workload.flops`), recomputed from the step time, because the figure that a
framework prints changed between releases; the printed one stands beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.evidence.record import Memory
from moe_dispatch.evidence.training import LossHealth, RankMemory, TrainingMetrics
from moe_dispatch.megatron.ingest.iterations import IterationLine, StepTime
from moe_dispatch.megatron.ingest.timeline import Printed
from moe_dispatch.megatron.ingest.view import Settings, padded_vocabulary, shape_of
from moe_dispatch.site.hardware import Hardware
from moe_dispatch.workload.flops import model_flops_per_step, tflops_per_gpu

OUTLIER = 1.5
_STEP_TIME_ROUNDING_S = 0.005
"""Bridge prints step times with two decimals."""


def metrics_of(
    counted: Sequence[Printed], steps: Iterable[StepTime], settings: Settings, world: int | None, gpu: Hardware | None
) -> TrainingMetrics | None:
    """Statistics over the window; None when it is empty.

    Args:
        steps: Bridge's step-time lines; each is matched to the one iteration of that time, or to none.
        world: ranks of the job; None leaves out what is per GPU.
        gpu: for its dense bf16 peak; None leaves out MFU.
    """
    timed = [(one.line, one.line.elapsed_ms) for one in counted if one.line.elapsed_ms is not None]
    times = [elapsed for _, elapsed in timed]
    if not times:
        return None
    mean, median = statistics.fmean(times), statistics.median(times)
    logged = [value for line, _ in timed if (value := logged_tflops(line, steps, counted)) is not None]
    batch = settings.integer("global_batch_size", "train.global_batch_size") or _printed_batch(counted)
    sequence = settings.integer("seq_length", "dataset.seq_length", "dataset.sequence_length")
    flops = _step_flops(settings, sequence, batch)
    tflops = tflops_per_gpu(flops, mean / 1e3, world) if flops is not None and world else None
    tokens = sequence * batch / (mean / 1e3 * world) if sequence and batch and world else None
    return TrainingMetrics(
        mean_ms=mean,
        median_ms=median,
        spread=(max(times) - min(times)) / median if median else 0.0,
        outliers=tuple(line.iteration for line, elapsed in timed if elapsed > OUTLIER * median),
        tokens_per_s_per_gpu=tokens,
        tflops_per_gpu=tflops,
        tflops_per_gpu_logged=statistics.fmean(logged) if len(logged) == len(times) and any(logged) else None,
        mfu=tflops / gpu.bf16_tflops if tflops is not None and gpu is not None else None,
        peak_tflops=gpu.bf16_tflops if gpu is not None else None,
        peak_of=gpu.title if gpu is not None else "",
    )


def logged_tflops(line: IterationLine, steps: Iterable[StepTime], among: Sequence[Printed]) -> float | None:
    """What was printed for this iteration: on its own line, or on the step-time line that can only be its own."""
    if line.tflops_per_gpu is not None or line.elapsed_ms is None:
        return line.tflops_per_gpu
    seconds = line.elapsed_ms / 1e3
    fitting = [step for step in steps if abs(step.seconds - seconds) <= _STEP_TIME_ROUNDING_S + 1e-9]
    if len(fitting) != 1:
        return None
    rivals = [
        one
        for one in among
        if one.line.elapsed_ms is not None
        and abs(fitting[0].seconds - one.line.elapsed_ms / 1e3) <= _STEP_TIME_ROUNDING_S + 1e-9
    ]
    return fitting[0].tflops_per_gpu if len(rivals) == 1 else None


def loss_of(printed: Iterable[Printed]) -> LossHealth:
    """Losses of all printed iterations. A cut line says nothing about its loss and is left out."""
    whole = [one.line for one in printed if one.line.complete]
    finite = [line.lm_loss for line in whole if line.finite]
    return LossHealth(
        first=finite[0] if finite else None,
        last=finite[-1] if finite else None,
        not_finite=tuple(line.iteration for line in whole if not line.finite and not line.skipped),
        skipped=int(sum(line.skipped or 0 for line in whole)),
    )


def memory_of(lines: Sequence[RankMemory]) -> Memory | None:
    """Peaks over ranks and iterations, bytes; memory outside the allocator is not in any log."""
    if not lines:
        return None
    return Memory(
        allocated_peak_bytes=max((one.max_allocated_bytes for one in lines if one.max_allocated_bytes), default=None),
        reserved_peak_bytes=max((one.max_reserved_bytes for one in lines if one.max_reserved_bytes), default=None),
    )


def _printed_batch(counted: Sequence[Printed]) -> int | None:
    """The global batch of the window's lines, where they agree."""
    batches = {one.line.global_batch for one in counted}
    only = batches.pop() if len(batches) == 1 else None
    return int(only) if only else None


def _step_flops(settings: Settings, sequence: int | None, batch: int | None) -> float | None:
    shape = shape_of(settings)
    if shape is None or not sequence or not batch:
        return None
    try:
        return model_flops_per_step(shape, sequence, batch, vocab_padded=padded_vocabulary(settings))
    except WorkloadError:
        return None
