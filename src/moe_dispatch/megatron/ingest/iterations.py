"""Iteration lines of Megatron-LM and Megatron-Bridge, and Bridge's step-time lines.

Formats: NVIDIA/Megatron-LM@d98e8a64:megatron/training/training.py (training_log) and
NVIDIA-NeMo/Megatron-Bridge@067f987d:src/megatron/bridge/training/utils/train_utils.py. Every value is taken from the
line that names its iteration, and only where the bar that closes its field was printed: a line that was cut or glued to
another one loses values and never lends them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import datetime

_HEAD = re.compile(r"iteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)\]\s*$")
_STEP_TIME = re.compile(r"Step Time : (\d+\.\d\d)s GPU utilization: (\d+\.\d)MODEL_TFLOP/s/GPU")
_FIELDS = {
    "consumed samples": "consumed_samples",
    "elapsed time per iteration (ms)": "elapsed_ms",
    "throughput per GPU (TFLOP/s/GPU)": "tflops_per_gpu",
    "global batch size": "global_batch",
    "lm loss": "lm_loss",
    "grad norm": "grad_norm",
    "number of skipped iterations": "skipped",
    "number of nan iterations": "nan",
}
_VALUE = re.compile(
    rf"\| *({'|'.join(map(re.escape, _FIELDS))}): +(-?(?:\d+(?:\.\d*)?(?:[Ee][+-]?\d+)?|nan|inf)) *(?=\|)"
)
"""A field of ours between its two bars."""
_STAMP_CHARACTERS = 40


@dataclass(frozen=True, kw_only=True)
class IterationLine:
    """One printed iteration; None where the line does not say.

    Fields:
        iteration, planned: `a` and `b` of `iteration a/b`.
        stamp: time printed in front of it, seconds since the epoch of a clock without time zone.
        elapsed_ms: mean over the iterations since the line before it.
        lm_loss: absent where the average is NaN or negative; 0 where every step was skipped.
        skipped, nan: counts since the line before it.
    """

    iteration: int
    planned: int
    stamp: float | None = None
    consumed_samples: float | None = None
    elapsed_ms: float | None = None
    tflops_per_gpu: float | None = None
    global_batch: float | None = None
    lm_loss: float | None = None
    grad_norm: float | None = None
    skipped: float | None = None
    nan: float | None = None

    @property
    def complete(self) -> bool:
        """Whether the line was printed to its end."""
        return self.nan is not None and self.elapsed_ms is not None

    @property
    def known(self) -> int:
        """How many values the line gave."""
        return sum(getattr(self, field.name) is not None for field in fields(self))

    def agrees(self, other: IterationLine) -> bool:
        """Whether no value that both give differs."""
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return all(mine is None or theirs is None or mine == theirs or mine != mine for mine, theirs in pairs)

    @property
    def finite(self) -> bool:
        """Whether the loss was finite: printed, not the 0 of a skipped step, with a finite gradient norm.

        A loss that is NaN on a step that was not skipped is left out by Megatron and not counted as NaN.
        """
        if self.lm_loss is None or self.nan:
            return False
        skipped_all = bool(self.skipped) and self.lm_loss == 0
        norm = self.grad_norm
        return not skipped_all and (norm is None or abs(norm) < float("inf"))


@dataclass(frozen=True)
class StepTime:
    """Bridge's line without an iteration number: seconds with two decimals, model TFLOP/s/GPU."""

    seconds: float
    tflops_per_gpu: float


def iteration_lines(text: str) -> list[IterationLine]:
    """All iterations in one physical line (ranks may have written over each other)."""
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads] + [len(text)]
    return [_parse(text, head, end) for head, end in zip(heads, ends[1:], strict=True)]


def step_times(text: str) -> list[StepTime]:
    """All step-time lines in one physical line."""
    return [StepTime(float(seconds), float(tflops)) for seconds, tflops in _STEP_TIME.findall(text)]


def _parse(text: str, head: re.Match[str], end: int) -> IterationLine:
    values: dict[str, float] = {}
    for name, value in _VALUE.findall(text, head.end() - 1, end):
        values.setdefault(_FIELDS[name], float(value))
    stamp = _STAMP.search(text, max(0, head.start() - _STAMP_CHARACTERS), head.start())
    return IterationLine(
        iteration=int(head[1]), planned=int(head[2]), stamp=_seconds(stamp[1]) if stamp else None, **values
    )


def _seconds(text: str) -> float | None:
    try:
        return (datetime.fromisoformat(text) - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        return None
