"""Ratios between arms: inside launches where they ran interleaved, else of independent ones, or through a control."""

from __future__ import annotations

from collections.abc import Mapping

from moe_dispatch.decide.arms import Arm
from moe_dispatch.decide.stats import (
    CONFIDENCE,
    RESAMPLES,
    Interval,
    NoiseFloor,
    Samples,
    bootstrap_ratio,
    contrast,
    noise_floor,
)
from moe_dispatch.evidence.record import Model


class Resampling(Model):
    """How intervals are made."""

    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    seed: int = 0

    def ratio(self, left: Arm, right: Arm) -> Interval:
        """Time of one arm over another: paired over launches in which they ran interleaved, else launches independent.

        Pairing that would leave out launches of both arms is not worth it: a few on a resumed session ran apart.
        """
        shared = sorted(left.records.keys() & right.records.keys())
        enough = len(shared) == min(len(left.records), len(right.records))
        if shared and enough and left.interleaved and right.interleaved:
            return self._bootstrap(left.samples(shared), right.samples(shared), paired=True)
        return self._bootstrap(left.samples(), right.samples(), paired=False)

    def noise(self, base: Arm, others: list[Arm]) -> NoiseFloor | None:
        """The baseline against itself, as its arms are compared."""
        paired = base.interleaved and all(base.records.keys() & other.records.keys() for other in others)
        return noise_floor(
            base.samples(),
            base.visits(),
            paired=paired,
            confidence=self.confidence,
            resamples=self.resamples,
            seed=self.seed,
        )

    def _bootstrap(self, left: list[Samples], right: list[Samples], *, paired: bool) -> Interval:
        return bootstrap_ratio(
            left, right, paired=paired, confidence=self.confidence, resamples=self.resamples, seed=self.seed
        )


class Ratios:
    """Ratios of any two arms, some of which ran in another environment beside a control of their own.

    Args:
        arms: by label.
        base: label of the control in the main environment.
        control_of: label of an arm from another environment to the control there.
    """

    def __init__(self, arms: Mapping[str, Arm], base: str, control_of: Mapping[str, Arm], how: Resampling) -> None:
        self._arms, self._base, self._control_of, self._how = arms, base, control_of, how

    def of(self, left: str, right: str) -> Interval:
        """Time of one arm over another; through both controls where they ran in different environments."""
        controls = self._control_of.get(left), self._control_of.get(right)
        if controls[0] is controls[1]:
            return self._how.ratio(self._arms[left], self._arms[right])
        if right == self._base:
            return self._to_control(left)
        if left == self._base:
            return self._to_control(right).inverse
        return contrast(self._to_control(left), self._to_control(right))

    def _to_control(self, label: str) -> Interval:
        return self._how.ratio(self._arms[label], self._control_of.get(label, self._arms[self._base]))
