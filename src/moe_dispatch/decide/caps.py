"""Reasons that keep a verdict at `inconclusive`, each with what would lift it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from moe_dispatch.decide.arms import ArmStatus, gather
from moe_dispatch.decide.compare import Comparison
from moe_dispatch.decide.contract import partition
from moe_dispatch.decide.contract_table import contract_table
from moe_dispatch.decide.question import Question
from moe_dispatch.decide.ratios import Resampling
from moe_dispatch.decide.stats import Interval
from moe_dispatch.evidence.record import Model, RunStatus

UNSTABLE = frozenset(
    {RunStatus.CRASHED, RunStatus.TIMEOUT, RunStatus.INCORRECT, RunStatus.OOM, RunStatus.FELL_BACK, RunStatus.UNPROVEN}
)
"""An arm that ended like this in some launches is not proven by the others."""

UNFINISHED = frozenset({RunStatus.INTERRUPTED, RunStatus.TRUNCATED, RunStatus.UNPROVEN})
"""Says nothing about whether the arm works here."""


_NAMED = 6
"""Unknown fields that a sentence names; of more it gives the groups, and the table of the contract names them."""


class Cap(Model):
    """One reason: identifier, sentence part, and what would change it."""

    id: str
    reason: str
    remedy: str


class SkewCheck(Model):
    """The winner repeated on a skewed routing.

    Fields:
        against: arm in the least favourable pair.
        interval: time of the winner over that arm on this routing.
        flipped: the winner is slower there, by more than the threshold or beyond its interval.
    """

    routing: str
    against: str
    interval: Interval
    flipped: bool


def launches_cap(comparison: Comparison, labels: Iterable[str], minimum: int) -> Cap | None:
    """Too few launches of one of the arms, counted over the launches that could be used."""
    used = {arm.label: arm.launches for arm in comparison.arms if arm.label in set(labels)}
    for ratio in comparison.ratios:
        for label in (ratio.arm, ratio.against):
            if label in used:
                used[label] = min(used[label], ratio.interval.launches)
    short = {label: count for label, count in used.items() if count < minimum}
    if not short:
        return None
    counts = ", ".join(f"{label} {count}" for label, count in sorted(short.items()))
    missing = minimum - min(short.values())
    return Cap(
        id="few-launches",
        reason=f"fewer than {minimum} launches of an arm ({counts})",
        remedy=f"{missing} more launch{'es' if missing > 1 else ''} with all arms interleaved",
    )


def unknown_cap(comparison: Comparison) -> Cap | None:
    """Contract fields that nobody knows."""
    unknown = comparison.contract.unknown
    if not unknown:
        return None
    names = ", ".join(unknown)
    if len(unknown) > _NAMED:
        counts = Counter(contract_table().rule(name).group for name in unknown)
        names = f"{len(unknown)} ({', '.join(f'{count} of {group}' for group, count in counts.items())})"
    return Cap(
        id="contract-unknown",
        reason=f"contract fields unknown: {names}",
        remedy=f"recording the unknown fields ({names}), or vouching for them with --attest",
    )


def noise_cap(comparison: Comparison) -> Cap | None:
    """A winner needs to stand out of the baseline's own repeats, which must exist."""
    if comparison.noise is not None or comparison.baseline is None:
        return None
    return Cap(
        id="noise-floor-unknown",
        reason=f"the baseline {comparison.baseline.label} has no repeats to compare with itself",
        remedy="at least two visits of the baseline in a launch (or two launches)",
    )


def hosts_cap(comparison: Comparison) -> Cap | None:
    """Arms that never ran in the same launches, and not on the same hosts: the host may be the difference."""
    hosts = {arm.label: arm.hosts for arm in comparison.arms}
    for ratio in comparison.ratios:
        if not ratio.interval.paired and hosts[ratio.arm] != hosts[ratio.against]:
            where = "; ".join(f"{label} on {', '.join(hosts[label])}" for label in (ratio.arm, ratio.against))
            return Cap(
                id="other-hosts",
                reason=f"the arms ran in separate launches on different hosts ({where})",
                remedy=f"launches of {ratio.arm} and {ratio.against} together, on the same hosts",
            )
    return None


def provider_cap(comparison: Comparison) -> Cap | None:
    """Records of two packages that answer to one name."""
    for arm in comparison.arms:
        if len(arm.providers) > 1:
            return Cap(
                id="providers-mixed",
                reason=f"{arm.label} was provided by {' and '.join(arm.providers)}",
                remedy=f"comparing the records of one provider of {arm.label} only",
            )
    return None


def tuned_cap(question: Question, comparison: Comparison, label: str) -> Cap | None:
    """The arm's knobs were chosen by the very runs that judge it."""
    arm = comparison.arm(label)
    if arm is None or question.stage == "confirm":
        return None
    name = arm.choice.dispatcher
    rivals = {one.label for one in comparison.arms if one.choice.dispatcher == name}
    if question.stage == "screen":
        rivals |= set(question.screened.get(name, ()))
    if len(rivals) < 2:
        return None
    return Cap(
        id="tuned-not-confirmed",
        reason=f"{label} was chosen among {len(rivals)} settings of {name} by the same runs that judge it",
        remedy=f"fresh launches of {label} and the baseline in a stage of their own (decide or confirm)",
    )


def unstable_cap(statuses: Sequence[ArmStatus], label: str, stage: str) -> Cap | None:
    """The arm also failed in the deciding stage."""
    bad = [one for one in statuses if one.choice.label == label and one.stage == stage and one.status in UNSTABLE]
    if not bad:
        return None
    text = ", ".join(f"{one.status.value} {one.attempts}x" for one in bad)
    remedy = f"finding out why: {bad[0].reason}"
    return Cap(id="arm-unstable", reason=f"{label} also failed in this stage ({text})", remedy=remedy)


def skew_checks(question: Question, best: str, others: Iterable[str], threshold: float, phase: str) -> list[SkewCheck]:
    """One check for each skewed routing that ran the winner and an arm it beat."""
    rivals = set(others)
    checks = []
    routings = sorted({str(record.contract.workload.get("routing")) for record in question.skew})
    for routing in routings:
        same = [record for record in question.skew if str(record.contract.workload.get("routing")) == routing]
        group = max(partition(same), key=lambda part: (len({record.choice.label for record in part}), len(part)))
        arms = gather(group, phase)
        if best not in arms or not rivals & arms.keys():
            continue
        pairs = {label: Resampling().ratio(arms[best], arms[label]) for label in sorted(rivals & arms.keys())}
        against = max(pairs, key=lambda label: pairs[label].ratio)
        flipped = any(
            one.ratio > 1 and (one.low > 1 or math.log(one.ratio) > math.log1p(threshold)) for one in pairs.values()
        )
        checks.append(SkewCheck(routing=routing, against=against, interval=pairs[against], flipped=flipped))
    return checks


def skew_cap(checks: Iterable[SkewCheck], best: str) -> Cap | None:
    """The sign flips when routing is not balanced."""
    flipped = [one for one in checks if one.flipped]
    if not flipped:
        return None
    one = flipped[0]
    return Cap(
        id="skew-flips",
        reason=(
            f"the sign flips on {one.routing} routing, where {best} takes {one.interval.ratio:.2f} times "
            f"as long as {one.against}"
        ),
        remedy="measuring with a trace of the training job's own routing (--routing trace:FILE)",
    )
