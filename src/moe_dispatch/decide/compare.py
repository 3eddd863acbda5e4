"""Comparison of arms under one contract: ratios with intervals, noise floor, memory beside time, what was left out.

Pure functions on records. Nothing here picks a winner; `verdict` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.arms import (
    Arm,
    ArmStatus,
    ArmSummary,
    common_memory_kind,
    gather,
    status_findings,
    straggler_finding,
    without_timing,
)
from moe_dispatch.decide.contract import ContractCheck, check, contract_findings, partition
from moe_dispatch.decide.stats import CONFIDENCE, RESAMPLES, Interval, NoiseFloor, bootstrap_ratio, noise_floor
from moe_dispatch.evidence.record import Model, RunRecord, RunStatus

DEFAULT_BASELINE = "alltoall"


class ArmRatio(Model):
    """Time of `arm` over time of `against`; labels of choices."""

    arm: str
    against: str
    interval: Interval


class Comparison(Model):
    """What the records say.

    Fields:
        baseline: arm that the others are divided by; None when nothing ended `ok`.
        arms: compared arms, fastest first.
        ratios: each arm against the baseline, and each against the fastest.
        noise: of the baseline; None when it cannot be split into halves.
        contract: equal, different and unknown fields.
        excluded: labels of arms that ended `ok` under another contract.
        not_ranked: attempts without timing.
        pareto: labels of arms that no other arm beats in both time and memory; fastest first.
        run_ids: records that were compared.
    """

    baseline: Choice | None
    arms: tuple[ArmSummary, ...]
    ratios: tuple[ArmRatio, ...]
    noise: NoiseFloor | None
    contract: ContractCheck
    excluded: tuple[str, ...]
    not_ranked: tuple[ArmStatus, ...]
    pareto: tuple[str, ...]
    run_ids: tuple[str, ...]
    findings: tuple[Finding, ...]

    def ratio(self, arm: str, against: str) -> Interval | None:
        """The interval of one pair of labels, in either direction."""
        for one in self.ratios:
            if (one.arm, one.against) == (arm, against):
                return one.interval
            if (one.arm, one.against) == (against, arm):
                return one.interval.inverse
        return None

    def arm(self, label: str) -> ArmSummary | None:
        """One compared arm."""
        return next((arm for arm in self.arms if arm.label == label), None)


def compare(
    records: Sequence[RunRecord],
    baseline: str | None = None,
    *,
    attest: Iterable[str] = (),
    simplicity: Mapping[str, int] | None = None,
    phase: str = "total",
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare the arms of one question (see `question.pose`).

    Of several contracts, the one with most arms is compared; arms that ran only under another are excluded and named
    field by field.

    Args:
        records: attempts of any status.
        baseline: label or dispatcher name; None takes `alltoall`, else the simplest.
        attest: unknown contract fields that the user vouches for.
        simplicity: dispatcher name to rank, 0 is simplest.
        phase: which latency of an iteration is compared.

    Raises:
        UsageError: an attested field or a phase that does not exist.
    """
    ok = [record for record in records if record.status is RunStatus.OK]
    groups = sorted(partition(ok), key=lambda group: _rank_of_group(group, baseline))
    chosen = groups[-1] if groups else []
    rest = [record for group in groups[:-1] for record in group]
    arms = gather(chosen, phase)
    not_ranked = without_timing(records)
    kind = common_memory_kind(arms.values())
    summaries = sorted((arm.summary(kind) for arm in arms.values()), key=lambda one: one.median_us)
    base = _baseline(summaries, baseline, simplicity or {})
    how = _Resampling(confidence=confidence, resamples=resamples, seed=seed)
    contract = check(chosen, rest, attest)
    return Comparison(
        baseline=base.choice if base else None,
        arms=tuple(summaries),
        ratios=_ratios(arms, summaries, base, how),
        noise=_noise(arms, base, how),
        contract=contract,
        excluded=tuple(sorted({record.choice.label for record in rest} - arms.keys())),
        not_ranked=not_ranked,
        pareto=pareto(summaries),
        run_ids=tuple(sorted(record.run_id for arm in arms.values() for record in arm.records.values())),
        findings=tuple(_findings(arms, contract, not_ranked, baseline, base)),
    )


def ratio_of(left: Arm, right: Arm, *, confidence: float, resamples: int, seed: int) -> Interval:
    """Time of one arm over another: paired over launches in which they ran interleaved, else launches independent.

    Pairing that would leave out launches which both arms have is not worth it: a few on a resumed session ran apart.
    """
    shared = sorted(left.records.keys() & right.records.keys())
    enough = len(shared) == min(len(left.records), len(right.records))
    if shared and enough and left.interleaved and right.interleaved:
        samples = left.samples(shared), right.samples(shared)
        return bootstrap_ratio(*samples, confidence=confidence, resamples=resamples, seed=seed)
    samples = left.samples(), right.samples()
    return bootstrap_ratio(*samples, paired=False, confidence=confidence, resamples=resamples, seed=seed)


def pareto(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """Labels of arms that no other beats in time without losing in memory; by time alone where memory is unknown."""

    def beaten(arm: ArmSummary) -> bool:
        here = (arm.median_us, arm.memory_bytes or 0)
        pairs = [(other.median_us, other.memory_bytes or 0) for other in arms]
        return any(time <= here[0] and memory <= here[1] and (time, memory) != here for time, memory in pairs)

    return tuple(arm.label for arm in sorted(arms, key=lambda one: one.median_us) if not beaten(arm))


class _Resampling(Model):
    confidence: float
    resamples: int
    seed: int

    def ratio(self, left: Arm, right: Arm) -> Interval:
        return ratio_of(left, right, confidence=self.confidence, resamples=self.resamples, seed=self.seed)


def _rank_of_group(group: Sequence[RunRecord], baseline: str | None) -> tuple[bool, int, int, str]:
    labels = {record.choice.label for record in group}
    wanted = baseline or DEFAULT_BASELINE
    has_baseline = any(wanted in (record.choice.label, record.choice.dispatcher) for record in group)
    return len(labels) > 1 and has_baseline, len(labels), len(group), max(record.run_id for record in group)


def _baseline(arms: Sequence[ArmSummary], wanted: str | None, simplicity: Mapping[str, int]) -> ArmSummary | None:
    def order(arm: ArmSummary) -> tuple[bool, bool, int, int, str]:
        choice = arm.choice
        asked = wanted is not None and wanted in (choice.label, choice.dispatcher)
        rank = simplicity.get(choice.dispatcher, len(simplicity))
        return not asked, choice.dispatcher != DEFAULT_BASELINE, rank, len(choice.knobs), choice.label

    return min(arms, key=order, default=None)


def _ratios(
    arms: Mapping[str, Arm], summaries: Sequence[ArmSummary], base: ArmSummary | None, how: _Resampling
) -> tuple[ArmRatio, ...]:
    if base is None:
        return ()
    fastest = summaries[0].label
    pairs = [(one.label, base.label) for one in summaries if one.label != base.label]
    pairs += [
        (one.label, fastest) for one in summaries if one.label not in (fastest, base.label) and fastest != base.label
    ]
    return tuple(
        ArmRatio(arm=arm, against=against, interval=how.ratio(arms[arm], arms[against])) for arm, against in pairs
    )


def _noise(arms: Mapping[str, Arm], base: ArmSummary | None, how: _Resampling) -> NoiseFloor | None:
    if base is None:
        return None
    arm = arms[base.label]
    others = [other for label, other in arms.items() if label != base.label]
    paired = arm.interleaved and all(arm.records.keys() & other.records.keys() for other in others)
    return noise_floor(
        arm.samples(),
        arm.visits(),
        paired=paired,
        confidence=how.confidence,
        resamples=how.resamples,
        seed=how.seed,
    )


def _findings(
    arms: Mapping[str, Arm],
    contract: ContractCheck,
    not_ranked: Sequence[ArmStatus],
    wanted: str | None,
    base: ArmSummary | None,
) -> list[Finding]:
    findings = contract_findings(contract, arms if len(arms) > 1 else ())
    if wanted and base and wanted not in (base.choice.label, base.choice.dispatcher):
        findings.append(
            Finding(
                id="baseline-missing",
                severity=Severity.WARNING,
                message=f"baseline {wanted} has no valid timing; {base.label} takes its place",
                source="records",
            )
        )
    single = [label for label, arm in arms.items() if len(arm.records) == 1]
    if single:
        findings.append(
            Finding(
                id="single-run",
                severity=Severity.WARNING,
                message=f"measured in one launch only: {', '.join(single)}",
                why="differences between launches (placement, links, neighbours) cannot be seen",
                advice=("measure at least five launches of every arm",),
                source="records",
            )
        )
    if len(arms) > 1 and base and not _interleaved(arms, base):
        findings.append(
            Finding(
                id="not-interleaved",
                severity=Severity.WARNING,
                message="arms ran in separate launches",
                why="drift between them does not cancel, and a slow machine can favour one arm",
                advice=("measure the arms in the same launches",),
                source="records",
            )
        )
    straggler = straggler_finding(arms.values())
    return [*findings, *([straggler] if straggler else []), *status_findings(not_ranked)]


def _interleaved(arms: Mapping[str, Arm], base: ArmSummary) -> bool:
    keys = arms[base.label].records.keys()
    return all(arm.interleaved and arm.records.keys() & keys for arm in arms.values())
