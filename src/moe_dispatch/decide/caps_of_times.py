"""Reasons in the times that keep a verdict back: a resolution too coarse, a mean that contradicts the median."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from moe_dispatch.decide.arms import gather
from moe_dispatch.decide.caps import Cap
from moe_dispatch.decide.contract_table import TRAINING_LEVEL
from moe_dispatch.decide.stats import Interval, NoiseFloor
from moe_dispatch.evidence.record import RunRecord

COARSEST = 0.20
"""Relative difference that a tie must be able to show: one that could hide more says nothing about which is faster."""


def resolution_cap(tied: Mapping[str, Interval], best: str, noise: NoiseFloor | None, threshold: float) -> Cap | None:
    """Nothing was shown because nothing could have been.

    Args:
        tied: arm to the time of the fastest over it.
        threshold: a coarser one that the user asks for moves the limit.
    """
    limit = max(COARSEST, threshold)
    if noise is not None and noise.relative > limit:
        reason = (
            f"the baseline differs from itself by up to {noise.relative:.0%}, so a tie here would hide anything below"
        )
        return Cap(id="too-noisy", reason=reason, remedy="a quieter machine, more iterations or more launches")
    for label, interval in tied.items():
        half = math.sqrt(interval.high / interval.low) - 1
        if half > limit:
            reason = (
                f"{best} over {label} lies anywhere in {interval.low:.2f} to {interval.high:.2f}, so a difference of "
                f"{half:.0%} could not have been shown"
            )
            return Cap(id="too-noisy", reason=reason, remedy="a quieter machine, more iterations or more launches")
    return None


def mean_cap(records: Sequence[RunRecord], best: str, rivals: Sequence[str], phase: str) -> Cap | None:
    """Training steps only: throughput is the mean, and slow steps that a median passes over cost as much as others."""
    steps = [record for record in records if record.contract.measure.get("level") == TRAINING_LEVEL]
    means = {
        label: float(np.mean([np.log(launch.mean()) for launch in arm.samples()]))
        for label, arm in gather(steps, phase).items()
    }
    for label in rivals:
        if best in means and label in means and means[best] >= means[label]:
            ratio = math.exp(means[best] - means[label])
            return Cap(
                id="mean-contradicts",
                reason=f"by the mean step, {best} takes {ratio:.3f} times as long as {label}: slow steps cost more",
                remedy=f"finding out what the slow steps of {best} are, or a longer window",
            )
    return None
