"""Bootstrap of latency ratios: launches are resampled first, then the iterations inside each; and the noise floor.

The statistic is exp(mean over launches of log(median of the arm / median of the baseline)). Its interval encloses two:
the percentile interval of the hierarchical bootstrap, and that of launches alone widened by sqrt(L / (L - 1)) x t / z.
Resampling a handful of launches gives intervals that are too narrow by these two factors (Hesterberg, "What Teachers
Should Know About the Bootstrap", arXiv:1411.5279, narrowness bias); resampling iterations guards against launches that
look alike by chance. docs/method.md has the measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]
CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio of latencies, arm over baseline (below 1: the arm is faster), with its confidence interval.

    Fields:
        launches: launches of the smaller side that went in.
        iterations: timed iterations of the arm that went in.
        paired: arm and baseline ran interleaved in the same launches; else launches are resampled independently.
    """

    ratio: float
    low: float
    high: float
    launches: int
    iterations: int
    paired: bool

    @property
    def inverse(self) -> Interval:
        """The same comparison seen from the other arm; `iterations` stays that of this arm."""
        return Interval(
            ratio=1 / self.ratio,
            low=1 / self.high,
            high=1 / self.low,
            launches=self.launches,
            iterations=self.iterations,
            paired=self.paired,
        )


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """What the baseline shows against itself.

    Fields:
        relative: smallest relative difference that repeats of one dispatcher cannot explain, for example 0.013.
        interval: ratio of the two halves of the baseline's own samples.
        method: `visits` (even against odd visits inside launches) or `launches` (even against odd launches).
        drifted: the halves differ beyond their own interval; the floor then reaches to the interval's far end.
    """

    relative: float
    interval: Interval
    method: str
    drifted: bool


def bootstrap_ratio(
    arm: Sequence[Samples],
    baseline: Sequence[Samples],
    *,
    paired: bool = True,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Ratio of an arm to its baseline with a confidence interval.

    Args:
        arm, baseline: per launch the latencies of its iterations, in order, any unit, all positive. When `paired`,
            entry i of both is the same launch.
        confidence: two-sided level.

    Raises:
        ValueError: nothing to resample, latencies that are not positive, or unequal numbers of launches when paired.
    """
    arm, baseline = _checked(arm), _checked(baseline)
    if paired and len(arm) != len(baseline):
        raise ValueError(f"{len(arm)} launches of the arm cannot be paired with {len(baseline)} of the baseline")
    means_arm, means_base = _log_medians(arm), _log_medians(baseline)
    estimate = float(means_arm.mean() - means_base.mean())
    rng = np.random.default_rng(seed)
    ours = rng.integers(len(arm), size=(resamples, len(arm)))
    theirs = ours if paired else rng.integers(len(baseline), size=(resamples, len(baseline)))
    launches_only = means_arm[ours].mean(axis=1) - means_base[theirs].mean(axis=1)
    streams = [np.random.default_rng(seed + 1), np.random.default_rng(seed + 1 if paired else seed + 2)]
    nested = _resampled_means(arm, ours, streams[0]) - _resampled_means(baseline, theirs, streams[1])
    tail = (1 - confidence) / 2
    fewer = min(len(arm), len(baseline))
    widen = _few_launches(fewer, tail)
    low, high = np.quantile(launches_only, [tail, 1 - tail])
    ends = [estimate, estimate + widen * (float(low) - estimate), estimate + widen * (float(high) - estimate)]
    ends += [float(end) for end in np.quantile(nested, [tail, 1 - tail])]
    return Interval(
        ratio=math.exp(estimate),
        low=math.exp(min(ends)),
        high=math.exp(max(ends)),
        launches=fewer,
        iterations=sum(launch.size for launch in arm),
        paired=paired,
    )


def contrast(first: Interval, second: Interval) -> Interval:
    """The first ratio over the second, both against controls of their own, with its interval.

    The distances from each estimate to its ends are added in squares, on the logarithm (MOVER: Zou and Donner,
    Statistics in Medicine 27, 2008, 1693-1702): coverage is inherited where the two are independent.
    """
    ratio, other = math.log(first.ratio), math.log(second.ratio)
    below = math.hypot(ratio - math.log(first.low), math.log(second.high) - other)
    above = math.hypot(math.log(first.high) - ratio, other - math.log(second.low))
    return Interval(
        ratio=math.exp(ratio - other),
        low=math.exp(ratio - other - below),
        high=math.exp(ratio - other + above),
        launches=min(first.launches, second.launches),
        iterations=first.iterations,
        paired=False,
    )


def noise_floor(
    baseline: Sequence[Samples],
    visits: Sequence[NDArray[np.int64]],
    *,
    paired: bool = True,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> NoiseFloor | None:
    """Compare the baseline with itself by the statistic that is used for arms.

    Args:
        baseline: as in `bootstrap_ratio`.
        visits: for each launch the visit (`pass_index`) of each iteration.
        paired: whether arms are compared inside launches. Then even visits stand against odd ones in the same launch,
            and the floor is half of that interval. Otherwise differences between launches do not cancel: the floor is
            what two sets of as many launches differ by, t x s x sqrt(2 / L) with the spread s of the launches, and even
            launches against odd ones show drift.

    Returns:
        None when the baseline has no two halves (one visit, or one launch).
    """
    if paired:
        split = [(launch[odd == 0], launch[odd == 1]) for launch, odd in zip(baseline, _parity(visits), strict=True)]
        halves = [(even, odd) for even, odd in split if even.size and odd.size]
        left, right = [even for even, _ in halves], [odd for _, odd in halves]
    else:
        left, right = list(baseline[0::2]), list(baseline[1::2])
    if not left or not right:
        return None
    interval = bootstrap_ratio(left, right, paired=paired, confidence=confidence, resamples=resamples, seed=seed)
    low, high = math.log(interval.low), math.log(interval.high)
    drifted = low > 0 or high < 0
    if drifted:
        reach = max(abs(low), abs(high))
    else:
        reach = (high - low) / 2 if paired else _reach_of_launches(baseline, confidence)
    return NoiseFloor(
        relative=math.expm1(reach), interval=interval, method="visits" if paired else "launches", drifted=drifted
    )


@lru_cache(maxsize=256)
def student_t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t for probability in (0.5, 1): bisection on the distribution's finite series.

    Source of the series: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    low, high = 0.0, 1.0
    while _student_t_below(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _student_t_below(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_t_below(value: float, freedom: int) -> float:
    theta = math.atan2(value, math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    inside = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return (1 + inside) / 2


def _reach_of_launches(baseline: Sequence[Samples], confidence: float) -> float:
    """Half width, on the logarithm, of the difference of two sets of launches of one dispatcher."""
    medians = _log_medians(_checked(baseline))
    t = student_t_quantile(1 - (1 - confidence) / 2, medians.size - 1)
    return t * float(medians.std(ddof=1)) * math.sqrt(2 / medians.size)


def _few_launches(launches: int, tail: float) -> float:
    """How much an interval of L resampled launches is widened; one launch says nothing about launches."""
    if launches < 2:
        return 1.0
    narrow = student_t_quantile(1 - tail, launches - 1) / NormalDist().inv_cdf(1 - tail)
    return math.sqrt(launches / (launches - 1)) * narrow


def _resampled_means(launches: Sequence[Samples], picks: NDArray[np.int64], rng: np.random.Generator) -> Samples:
    """Mean over picked launches of the log median of their resampled iterations, shape [resamples].

    A paired arm and baseline are given generators in the same state: where both have as many iterations, the same ones
    are resampled, so interference that hit both neighbours in the interleaved order stays in both.
    """
    values = np.empty(picks.shape)
    for index, launch in enumerate(launches):
        chosen = picks == index
        rows = rng.random((int(chosen.sum()), launch.size)) * launch.size
        values[chosen] = np.log(np.median(launch[rows.astype(np.int64)], axis=1))
    return np.asarray(values.mean(axis=1))


def _log_medians(launches: Sequence[Samples]) -> Samples:
    return np.log(np.array([np.median(launch) for launch in launches], dtype=np.float64))


def _parity(visits: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    return [np.asarray(visit) % 2 for visit in visits]


def _checked(launches: Sequence[Samples]) -> list[Samples]:
    checked = [np.asarray(launch, dtype=np.float64) for launch in launches]
    if not checked or any(launch.size == 0 for launch in checked):
        raise ValueError("a ratio needs at least one launch, and iterations in each")
    if any(not np.all(np.isfinite(launch) & (launch > 0)) for launch in checked):
        raise ValueError("latencies must be positive and finite")
    return checked
