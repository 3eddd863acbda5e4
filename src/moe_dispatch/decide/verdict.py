"""The verdict: winner, tie, only_available, inconclusive or not_comparable, by rules and never by taste.

Pure functions on records; docs/method.md states the rules for readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide import notes, statement
from moe_dispatch.decide.acceptance import acceptance
from moe_dispatch.decide.changes import would_change
from moe_dispatch.decide.compare import compare
from moe_dispatch.decide.question import pose
from moe_dispatch.decide.stats import CONFIDENCE, RESAMPLES
from moe_dispatch.decide.trust import trusted
from moe_dispatch.decide.variable import VARIABLES, by_stack
from moe_dispatch.decide.verdict_model import ArmEvidence, Attribution, Verdict, VerdictKind
from moe_dispatch.decide.verdict_rules import Rules
from moe_dispatch.evidence.record import RunRecord, RunStatus

__all__ = ["MIN_LAUNCHES", "THRESHOLD", "ArmEvidence", "Attribution", "Verdict", "VerdictKind", "decide"]

THRESHOLD = 0.02
MIN_LAUNCHES = 5


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
    vary: str = "dispatcher",
) -> Verdict:
    """Reach a verdict on records of one question; all stages and failed attempts may be among them.

    Args:
        simplicity: dispatcher name to rank, 0 is simplest; decides ties.
        baseline: label or dispatcher name; None takes `alltoall`, else the simplest.
        threshold: relative difference that matters in practice.
        min_launches: launches of every arm that a winner or a tie needs.
        attest: unknown contract fields that the user vouches for, or groups of them.
        routing: canonical routing of the main comparison; see `question.pose`.
        vary: what is compared: dispatchers under one contract, or the stacks of one dispatcher.

    Raises:
        UsageError: an attested field, a phase or a baseline that does not exist, a threshold outside 0 to 1, or records
            of several dispatchers (of one stack) where the stack is to vary.
    """
    if not 0 <= threshold < 1:
        raise UsageError(f"--threshold {threshold} must be at least 0 and below 1", "0.02 means two percent")
    if vary not in VARIABLES:
        raise UsageError(f"--vary {vary!r} is none of {', '.join(VARIABLES)}", "leave it out to compare dispatchers")
    records, doubts = trusted(records)
    varying: tuple[str, ...] = ()
    if vary == "stack":
        records, varying = by_stack(records)
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
    compared = [record for record in question.main if record.run_id in set(comparison.run_ids)]
    accepted = acceptance(compared)
    rules = Rules(question, comparison, compared, simplicity, threshold, margin, min_launches, phase, on, varying)
    outcome = rules.apply()
    credit = outcome.attribution
    text = outcome.text + statement.credited(credit, comparison.contract) if outcome.kind.valid else outcome.text
    return Verdict(
        kind=outcome.kind,
        winner=outcome.winner.choice if outcome.winner else None,
        recommended=outcome.recommended.choice if outcome.recommended else None,
        baseline=comparison.baseline,
        statement=text + (f" Acceptance: {accepted.text}." if accepted else ""),
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
            *doubts,
            *notes.cap_findings(outcome.caps, refused=outcome.kind is VerdictKind.NOT_COMPARABLE),
            *(notes.skew_findings(on) if outcome.kind is VerdictKind.WINNER and not outcome.skew else ()),
            *notes.drift_findings(comparison.noise),
            *notes.acceptance_findings(accepted),
            *comparison.findings,
        ),
        would_change=would_change(comparison, outcome.caps, outcome.kind.value, margin, on, accepted),
        attribution=credit,
        acceptance=accepted,
        controls=comparison.controls,
    )
