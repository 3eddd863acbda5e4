"""The verdict: winner, tie, only_available, inconclusive or not_comparable, by rules and never by taste.

Pure functions on records; docs/method.md states the rules for readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide import caps, notes, statement
from moe_dispatch.decide.arms import ArmStatus, ArmSummary
from moe_dispatch.decide.caps import Cap, SkewCheck
from moe_dispatch.decide.changes import would_change
from moe_dispatch.decide.compare import Comparison, compare
from moe_dispatch.decide.contract import ContractCheck
from moe_dispatch.decide.question import Question, pose
from moe_dispatch.decide.stats import CONFIDENCE, RESAMPLES, Interval, NoiseFloor
from moe_dispatch.evidence.record import Model, RunRecord, RunStatus

THRESHOLD = 0.02
MIN_LAUNCHES = 5


class VerdictKind(str, Enum):
    """`winner`, `tie` and `only_available` are valid verdicts; the others say what is missing."""

    WINNER = "winner"
    TIE = "tie"
    ONLY_AVAILABLE = "only_available"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not_comparable"

    @property
    def valid(self) -> bool:
        """Whether a command may exit 0 on it."""
        return self in (VerdictKind.WINNER, VerdictKind.TIE, VerdictKind.ONLY_AVAILABLE)


class ArmEvidence(Model):
    """One compared arm.

    Fields:
        ratio: its time over the baseline's; None for the baseline itself.
        standing: `fastest`, `tied` with the fastest, or `slower`.
    """

    choice: Choice
    ratio: Interval | None
    standing: str
    median_us: float
    launches: int
    iterations: int
    memory_bytes: int | None
    labels: tuple[str, ...]


class Verdict(Model):
    """What may be claimed and on which ground.

    Fields:
        winner: only for kind `winner`.
        recommended: what to use meanwhile: the winner, else the simplest arm that nothing shown beats; None when there
            is no ground at all.
        statement: the claim in words, with device, transport, ranks and labels.
        reasons: why it is not a winner or a tie, in words; empty for valid verdicts.
        margin: relative difference that counted: the larger of threshold and noise floor.
        skew: one entry for each skewed routing; empty when there was none or nothing to repeat.
        not_ranked: attempts without timing.
        run_ids: records that were compared.
    """

    kind: VerdictKind
    winner: Choice | None
    recommended: Choice | None
    baseline: Choice | None
    statement: str
    reasons: tuple[str, ...]
    evidence: tuple[ArmEvidence, ...]
    noise_floor: NoiseFloor | None
    threshold: float
    margin: float
    pareto: tuple[str, ...]
    skew: tuple[SkewCheck, ...]
    contract: ContractCheck
    not_ranked: tuple[ArmStatus, ...]
    measured_on: dict[str, Any]
    stage: str
    run_ids: tuple[str, ...]
    findings: tuple[Finding, ...]
    would_change: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether a command that was asked for just this comparison may exit 0: valid, and no arm was refused."""
        return self.kind.valid and not any(finding.severity is Severity.ERROR for finding in self.findings)


class _Outcome(NamedTuple):
    kind: VerdictKind
    winner: ArmSummary | None
    recommended: ArmSummary | None
    text: str
    caps: tuple[Cap, ...] = ()
    skew: tuple[SkewCheck, ...] = ()


def decide(
    records: Sequence[RunRecord],
    *,
    simplicity: Mapping[str, int],
    baseline: str | None = None,
    threshold: float = THRESHOLD,
    min_launches: int = MIN_LAUNCHES,
    attest: Iterable[str] = (),
    routing: str | None = None,
    phase: str = "total",
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Verdict:
    """Reach a verdict on records of one question; all stages and failed attempts may be among them.

    Args:
        simplicity: dispatcher name to rank, 0 is simplest; decides ties.
        baseline: label or dispatcher name; None takes `alltoall`, else the simplest.
        threshold: relative difference that matters in practice.
        min_launches: launches of every arm that a winner or a tie needs.
        attest: unknown contract fields that the user vouches for.
        routing: canonical routing of the main comparison; see `question.pose`.

    Raises:
        UsageError: an attested field, a phase or a baseline that does not exist, or a threshold outside 0 to 1.
    """
    if not 0 <= threshold < 1:
        raise UsageError(f"--threshold {threshold} must be at least 0 and below 1", "0.02 means two percent")
    names = {name for record in records for name in (record.choice.label, record.choice.dispatcher)}
    if baseline is not None and baseline not in names:
        raise UsageError(f"no record tried the baseline {baseline!r}", f"there are: {', '.join(sorted(names))}")
    question = pose(records, routing)
    failed = [record for record in question.others if record.status is not RunStatus.OK]
    comparison = compare(
        [*question.main, *failed],
        baseline,
        attest=attest,
        simplicity=simplicity,
        phase=phase,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
    margin = max(threshold, comparison.noise.relative if comparison.noise else 0.0)
    labels = sorted({label for arm in comparison.arms for label in arm.labels})
    on = statement.measured_on(comparison.contract.equal, labels)
    rules = _Rules(question, comparison, simplicity, threshold, margin, min_launches, phase, on)
    outcome = rules.apply()
    return Verdict(
        kind=outcome.kind,
        winner=outcome.winner.choice if outcome.winner else None,
        recommended=outcome.recommended.choice if outcome.recommended else None,
        baseline=comparison.baseline,
        statement=outcome.text,
        reasons=tuple(cap.reason for cap in outcome.caps),
        evidence=rules.evidence(),
        noise_floor=comparison.noise,
        threshold=threshold,
        margin=margin,
        pareto=comparison.pareto,
        skew=outcome.skew,
        contract=comparison.contract,
        not_ranked=comparison.not_ranked,
        measured_on=on,
        stage=question.stage,
        run_ids=comparison.run_ids,
        findings=(
            *notes.cap_findings(outcome.caps, refused=outcome.kind is VerdictKind.NOT_COMPARABLE),
            *(notes.skew_findings(on) if outcome.kind is VerdictKind.WINNER and not outcome.skew else ()),
            *notes.drift_findings(comparison.noise),
            *comparison.findings,
        ),
        would_change=would_change(comparison, outcome.caps, outcome.kind.value, margin, on),
    )


class _Rules:
    def __init__(
        self,
        question: Question,
        comparison: Comparison,
        simplicity: Mapping[str, int],
        threshold: float,
        margin: float,
        min_launches: int,
        phase: str,
        on: Mapping[str, Any],
    ) -> None:
        self.question = question
        self.comparison = comparison
        self.simplicity = simplicity
        self.threshold = threshold
        self.margin = margin
        self.min_launches = min_launches
        self.phase = phase
        self.on = on
        self.arms = comparison.arms
        self.tied = [arm for arm in self.arms if arm is self.arms[0] or not self._beaten(arm)]

    def apply(self) -> _Outcome:
        """The first rule that fits."""
        if len(self.arms) > 1:
            return self._compared()
        if not self.arms:
            cap = Cap(
                id="nothing-measured",
                reason="no attempt at the question ended with a valid timing",
                remedy="a working dispatcher",
            )
            text = statement.no_claim([cap.reason], self.comparison.not_ranked)
            return _Outcome(VerdictKind.INCONCLUSIVE, None, None, text, (cap,))
        if self.comparison.excluded:
            fields = [difference.field for difference in self.comparison.contract.different]
            cap = Cap(
                id="not-comparable",
                reason=f"the arms did not run under one contract ({', '.join(fields)} differ)",
                remedy=f"measuring all arms with the same {', '.join(fields)}",
            )
            text = statement.no_claim([cap.reason], self.comparison.not_ranked)
            return _Outcome(VerdictKind.NOT_COMPARABLE, None, None, text, (cap,))
        return self._single(self.arms[0])

    def evidence(self) -> tuple[ArmEvidence, ...]:
        """All compared arms, fastest first."""
        base = self.comparison.baseline
        return tuple(
            ArmEvidence(
                choice=arm.choice,
                ratio=self.comparison.ratio(arm.label, base.label) if base else None,
                standing="fastest" if arm is self.arms[0] else "tied" if arm in self.tied else "slower",
                median_us=arm.median_us,
                launches=arm.launches,
                iterations=arm.iterations,
                memory_bytes=arm.memory_bytes,
                labels=arm.labels,
            )
            for arm in self.arms
        )

    def _beaten(self, arm: ArmSummary) -> bool:
        """The fastest arm is faster than this one beyond noise and threshold, with the whole interval."""
        interval = self.comparison.ratio(self.arms[0].label, arm.label)
        return interval is not None and math.log(interval.high) < -math.log1p(self.margin)

    def _single(self, only: ArmSummary) -> _Outcome:
        """One arm ended ok: the others failed, or were simply not measured to the end."""
        statuses = self.comparison.not_ranked
        failed = {one.choice.dispatcher for one in statuses if one.status not in caps.UNFINISHED}
        elsewhere = {
            record.choice.dispatcher
            for record in self.question.others
            if record.status is RunStatus.OK or record.status in caps.UNFINISHED
        }
        open_arms = sorted(elsewhere - failed - {only.choice.dispatcher})
        if not open_arms:
            text = statement.only_statement(only.label, self.on, statuses)
            return _Outcome(VerdictKind.ONLY_AVAILABLE, None, only, text)
        cap = Cap(
            id="arms-not-repeated",
            reason=f"not measured to the end in this stage: {', '.join(open_arms)}",
            remedy=f"launches of {only.label} and {', '.join(open_arms)} together",
        )
        text = statement.no_claim([cap.reason], statuses, self.on)
        return _Outcome(VerdictKind.INCONCLUSIVE, None, only, text, (cap,))

    def _compared(self) -> _Outcome:
        best = self.arms[0]
        won = len(self.tied) == 1
        recommended = best if won else self._simplest(self.tied)
        rivals = [arm.label for arm in self.arms[1:]]
        skew = caps.skew_checks(self.question, best.label, rivals, self.threshold, self.phase) if won else []
        found = [
            caps.unknown_cap(self.comparison),
            caps.hosts_cap(self.comparison),
            caps.provider_cap(self.comparison),
            caps.launches_cap(self.comparison, [arm.label for arm in self.arms], self.min_launches),
            caps.unstable_cap(self.comparison.not_ranked, recommended.label, self.question.stage),
        ]
        if won:
            found += [
                caps.noise_cap(self.comparison),
                caps.tuned_cap(self.question, self.comparison, best.label),
                caps.skew_cap(skew, best.label),
            ]
        holding = tuple(cap for cap in found if cap is not None)
        if holding:
            text = statement.no_claim([cap.reason for cap in holding], self.comparison.not_ranked, self.on)
            safe = self._simplest(self.arms)
            return _Outcome(VerdictKind.INCONCLUSIVE, None, safe, text, holding, tuple(skew))
        if won:
            text = statement.winner_statement(best.label, self._intervals(best, rivals), self.on)
            return _Outcome(VerdictKind.WINNER, best, best, text, skew=tuple(skew))
        tied = [arm.label for arm in self.tied]
        closest = self._intervals(best, tied[1:])
        text = statement.tie_statement(tied, recommended.label, self.margin, closest[tied[1]], self.on)
        return _Outcome(VerdictKind.TIE, None, recommended, text)

    def _intervals(self, best: ArmSummary, rivals: Sequence[str]) -> dict[str, Interval]:
        found = {label: self.comparison.ratio(best.label, label) for label in rivals}
        return {label: interval for label, interval in found.items() if interval is not None}

    def _simplest(self, arms: Sequence[ArmSummary]) -> ArmSummary:
        """Stable arms first, then the simplest dispatcher with the fewest knobs, then the fastest."""

        def order(arm: ArmSummary) -> tuple[bool, int, int, float]:
            unstable = caps.unstable_cap(self.comparison.not_ranked, arm.label, self.question.stage) is not None
            rank = self.simplicity.get(
                arm.choice.dispatcher, len(self.simplicity) + max(self.simplicity.values(), default=0)
            )
            return unstable, rank, len(arm.choice.knobs), arm.median_us

        return min(arms, key=order)
