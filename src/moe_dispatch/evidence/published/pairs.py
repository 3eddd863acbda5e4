"""Pairs of published rows: two dispatchers, or two settings of one, with what else differs between the arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from moe_dispatch.evidence.published.rows import STRICT, Basis, Settings

Isolation = Literal["dispatcher", "transport", "recipe", "near", "confounded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One side of a pair: the training row it comes from and its value of the pair's metric."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    row: str
    dispatcher: str
    basis: Basis = "stated"
    provider: str = ""
    value: float | None = None

    @property
    def label(self) -> str:
        """Dispatcher with its provider, for tables."""
        return f"{self.dispatcher} ({self.provider})" if self.provider else self.dispatcher


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired(Settings):
    """Two rows that a source, or this collection, sets against each other.

    Fields:
        metric: what the arms' values are; empty when no speed is published (memory, loss).
        confounders: what differs besides the variable under test.
    """

    metric: Literal["", "step_time_s", "forward_backward_ms", "tflops_per_gpu"]
    baseline: Arm
    treatment: Arm
    confounders: tuple[str, ...] = ()

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """Of both arms, each once."""
        return tuple(dict.fromkeys((self.baseline.dispatcher, self.treatment.dispatcher)))

    @property
    def basis(self) -> Basis:
        """Of the arm that is known least."""
        return max(self.baseline.basis, self.treatment.basis, key=("stated", "inferred", "unknown").index)

    @property
    def speedup(self) -> float | None:
        """How many times faster the treatment is than the baseline; below 1 it is slower. None without a speed."""
        before, after = self.baseline.value, self.treatment.value
        if before is None or after is None:
            return None
        return after / before if self.metric == "tflops_per_gpu" else before / after

    @property
    def winner(self) -> Arm | None:
        """The faster arm; None without a speed or when equal. A single published pair has no noise floor."""
        if self.speedup is None or self.speedup == 1:
            return None
        return self.treatment if self.speedup > 1 else self.baseline

    @property
    def margin(self) -> float | None:
        """Fraction of its time that the slower arm takes longer than the faster one; None without a speed."""
        return None if self.speedup is None else max(self.speedup, 1 / self.speedup) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRow(Paired):
    """Two dispatchers, or two transports of one, on the same workload.

    Fields:
        isolation: what the pair isolates: `dispatcher`, `transport` (both arms the same API), `recipe` (recipes whose
            only relevant difference is the dispatcher), `near` (something small differs too) or `confounded` (something
            that moves step time differs too); see confounders.
    """

    kind: ClassVar[str] = "ab"

    isolation: Isolation

    @property
    def same_stack(self) -> bool:
        """Whether nothing but the dispatcher or its transport is known to differ."""
        return self.isolation in ("dispatcher", "transport") and not self.confounders


@dataclass(frozen=True, kw_only=True, slots=True)
class KnobRow(Paired):
    """Two settings of one knob under the same dispatcher: `before` and `after` are its values."""

    kind: ClassVar[str] = "knob"

    knob: str
    before: str
    after: str

    @property
    def dispatcher(self) -> str:
        """The dispatcher of both arms."""
        return self.baseline.dispatcher
