"""Training runs of this package as rows: step time, throughput, loss, memory and parity of each arm."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moe_dispatch.core.choice import Choice
from moe_dispatch.evidence.record import RunRecord, RunStatus

HEADINGS = (
    "dispatcher", "routing", "status", "step ms", "tokens/s", "TFLOP/s", "MFU", "exchange", "first loss", "last loss",
    "peak GiB", "parity",
)  # fmt: skip
"""Of the table. tokens/s and TFLOP/s are for one rank; `exchange` is the share of a step inside the dispatcher, and
`parity` the largest distance to the float32 reference in units of alltoall's own."""

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """One arm under one routing. Figures are means over its ok launches; memory is the largest.

    Fields:
        mean_ms, median_ms: of a step in the steady window.
        exchange_share: of a step, on the rank where it is largest.
        peak_memory_bytes: allocator peak on a GPU, growth of the resident set on a CPU.
        parity: largest distance over alltoall's own; step0_loss, reference_loss: of the first launch.
    """

    choice: Choice
    routing: str
    status: str
    launches: int
    mean_ms: float | None = None
    median_ms: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    exchange_share: float | None = None
    first_loss: float | None = None
    final_loss: float | None = None
    peak_memory_bytes: int | None = None
    parity: float | None = None
    step0_loss: float | None = None
    reference_loss: float | None = None
    labels: tuple[str, ...] = ()
    reason: str = ""
    fix: str = ""


def training_rows(records: Iterable[RunRecord]) -> tuple[TrainingRow, ...]:
    """One row for each (routing, arm), in the order of the records."""
    groups: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        groups[str(record.contract.workload["routing"]), record.choice.label].append(record)
    return tuple(_row(routing, group) for (routing, _), group in groups.items())


def table_rows(rows: Sequence[TrainingRow]) -> list[tuple[str, ...]]:
    """Cells under `HEADINGS`; empty where nothing was measured."""
    return [
        (
            row.choice.label,
            row.routing,
            row.status,
            _cell(row.mean_ms, ".1f"),
            _cell(row.tokens_per_s_per_gpu, ".0f"),
            _cell(row.tflops_per_gpu, ".3g"),
            _cell(row.mfu, ".1%"),
            _cell(row.exchange_share, ".0%"),
            _cell(row.first_loss, ".4f"),
            _cell(row.final_loss, ".4f"),
            _cell(None if row.peak_memory_bytes is None else row.peak_memory_bytes / _GIB, ".3f"),
            _cell(row.parity, ".2f"),
        )
        for row in rows
    ]


def _row(routing: str, group: Sequence[RunRecord]) -> TrainingRow:
    good = [record for record in group if record.status is RunStatus.OK]
    shown = good or group[-1:]
    last = shown[-1]

    runs = [record.training for record in good if record.training is not None]
    metrics = [run.metrics for run in runs if run.metrics is not None]
    first = shown[0].training
    parity = first.parity if first is not None else None
    peaks = [value for record in good if (value := _peak(record)) is not None]
    return TrainingRow(
        choice=last.choice,
        routing=routing,
        status=last.status.value,
        launches=len(shown),
        mean_ms=_mean(one.mean_ms for one in metrics),
        median_ms=_mean(one.median_ms for one in metrics),
        tokens_per_s_per_gpu=_mean(one.tokens_per_s_per_gpu for one in metrics),
        tflops_per_gpu=_mean(one.tflops_per_gpu for one in metrics),
        mfu=_mean(one.mfu for one in metrics),
        exchange_share=_mean(run.exposed.share for run in runs if run.exposed is not None),
        first_loss=_mean(run.loss.first for run in runs),
        final_loss=_mean(run.loss.last for run in runs),
        peak_memory_bytes=max(peaks, default=None),
        parity=_ratio(shown[0]),
        step0_loss=parity.step0_loss if parity is not None else None,
        reference_loss=parity.reference_loss if parity is not None else None,
        labels=last.labels,
        reason="" if good else last.reason,
        fix="" if good else last.fix,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _peak(record: RunRecord) -> int | None:
    memory = record.memory
    if memory is None:
        return None
    return memory.allocated_peak_bytes or memory.device_used_delta_bytes


def _ratio(record: RunRecord) -> float | None:
    parity = record.training.parity if record.training is not None else None
    if parity is None:
        return None
    ratios = [one.distance / one.baseline for one in parity.distances.values() if one.distance and one.baseline]
    return max(ratios, default=0.0)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
