"""Comparison of arms under one contract: ratios with intervals, noise floor, memory beside time, what was left out.

Pure functions on records. Nothing here picks a winner; `verdict` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.finding import Finding
from moe_dispatch.decide.arms import Arm, ArmStatus, ArmSummary, common_memory_kind, gather, without_timing
from moe_dispatch.decide.compare_notes import comparison_findings
from moe_dispatch.decide.contract import ContractCheck, check, partition
from moe_dispatch.decide.controls import ControlCheck, Environment, environments
from moe_dispatch.decide.pareto import pareto
from moe_dispatch.decide.ratios import Ratios, Resampling
from moe_dispatch.decide.stats import CONFIDENCE, RESAMPLES, Interval, NoiseFloor
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
        contract: equal, different, disclosed and unknown fields.
        controls: other environments whose arms were, or could not be, compared through a control.
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
    controls: tuple[ControlCheck, ...]
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
    field by field, unless they can be reached through control runs (see `controls`).

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
    chosen = groups.pop() if groups else []
    main = gather(chosen, phase)
    how = Resampling(confidence=confidence, resamples=resamples, seed=seed)
    base = _baseline([arm.choice for arm in main.values()], baseline, simplicity or {})
    noise = how.noise(main[base.label], [arm for arm in main.values() if arm.choice != base]) if base else None
    others = environments(chosen, main, base.label, groups[::-1], how) if base else []
    joined = [one for one in others if one.found.tied]
    arms = main | {label: arm for one in joined for label, arm in one.arms.items()}
    used = [*chosen, *(record for one in joined for record in one.records)]
    ids = {record.run_id for record in used}
    rest = [record for record in ok if record.run_id not in ids]
    controlled = {name for one in joined for name in one.found.fields}
    contract = check(used, rest, attest, controlled=controlled)
    not_ranked = without_timing(records)
    summaries, ratios = _measure(arms, base, joined, how)
    checks = tuple(one.found for one in others)
    return Comparison(
        baseline=base,
        arms=tuple(summaries),
        ratios=ratios,
        noise=noise,
        contract=contract,
        controls=checks,
        excluded=tuple(sorted({record.choice.label for record in rest} - arms.keys())),
        not_ranked=not_ranked,
        pareto=pareto(summaries),
        run_ids=tuple(
            sorted(
                record.run_id
                for arm in (*arms.values(), *(one.control for one in joined))
                for record in arm.records.values()
            )
        ),
        findings=tuple(comparison_findings(arms, contract, checks, not_ranked, baseline, base)),
    )


def _measure(
    arms: Mapping[str, Arm], base: Choice | None, joined: Sequence[Environment], how: Resampling
) -> tuple[list[ArmSummary], tuple[ArmRatio, ...]]:
    """Summaries, fastest first, and each arm's ratio to the baseline and to the fastest."""
    if base is None:
        return [], ()
    control_of = {label: one.control for one in joined for label in one.arms}
    ratios = Ratios(arms, base.label, control_of, how)
    kind = common_memory_kind(arms.values())
    here = arms[base.label].summary(kind)
    summaries = []
    for label, arm in arms.items():
        summary = arm.summary(kind)
        if label in control_of:
            ranked = here.median_us * ratios.of(label, base.label).ratio
            summary = summary.model_copy(update={"median_us": ranked, "through_control": True})
        summaries.append(summary)
    summaries.sort(key=lambda one: one.median_us)
    labels = [one.label for one in summaries]
    pairs = [(label, base.label) for label in labels if label != base.label]
    if labels[0] != base.label:
        pairs += [(label, labels[0]) for label in labels if label not in (labels[0], base.label)]
    found = (ArmRatio(arm=arm, against=against, interval=ratios.of(arm, against)) for arm, against in pairs)
    return summaries, tuple(found)


def _rank_of_group(group: Sequence[RunRecord], baseline: str | None) -> tuple[bool, int, int, str]:
    labels = {record.choice.label for record in group}
    wanted = baseline or DEFAULT_BASELINE
    has_baseline = any(wanted in (record.choice.label, record.choice.dispatcher) for record in group)
    return len(labels) > 1 and has_baseline, len(labels), len(group), max(record.run_id for record in group)


def _baseline(arms: Sequence[Choice], wanted: str | None, simplicity: Mapping[str, int]) -> Choice | None:
    def order(choice: Choice) -> tuple[bool, bool, int, int, str]:
        asked = wanted is not None and wanted in (choice.label, choice.dispatcher)
        rank = simplicity.get(choice.dispatcher, len(simplicity))
        return not asked, choice.dispatcher != DEFAULT_BASELINE, rank, len(choice.knobs), choice.label

    return min(arms, key=order, default=None)
