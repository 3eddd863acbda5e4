"""The rules of the verdict, in order; docs/method.md states them for readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moe_dispatch.decide import caps, statement
from moe_dispatch.decide.arms import ArmSummary
from moe_dispatch.decide.caps import Cap, SkewCheck
from moe_dispatch.decide.caps_of_times import mean_cap, resolution_cap
from moe_dispatch.decide.compare import Comparison
from moe_dispatch.decide.contract_table import TRAINING_LEVEL, contract_table
from moe_dispatch.decide.question import Question
from moe_dispatch.decide.stats import Interval
from moe_dispatch.decide.verdict_model import ArmEvidence, Attribution, VerdictKind
from moe_dispatch.evidence.record import RunRecord, RunStatus


class Outcome(NamedTuple):
    """What the rules came to."""

    kind: VerdictKind
    winner: ArmSummary | None
    recommended: ArmSummary | None
    text: str
    caps: tuple[Cap, ...] = ()
    skew: tuple[SkewCheck, ...] = ()
    attribution: Attribution = Attribution(to="nothing")


class Rules:
    """The rules over one comparison.

    Args:
        compared: the records behind the arms of the main environment.
        varying: stack fields that are the variable; empty where dispatchers are compared.
    """

    def __init__(
        self,
        question: Question,
        comparison: Comparison,
        compared: Sequence[RunRecord],
        simplicity: Mapping[str, int],
        threshold: float,
        margin: float,
        min_launches: int,
        phase: str,
        on: Mapping[str, Any],
        varying: Sequence[str] = (),
    ) -> None:
        self.question = question
        self.comparison = comparison
        self.simplicity = simplicity
        self.threshold = threshold
        self.margin = margin
        self.min_launches = min_launches
        self.phase = phase
        self.on = on
        self.compared = compared
        self.varying = tuple(varying)
        self.arms = comparison.arms
        self.tied = [arm for arm in self.arms if arm is self.arms[0] or not self._beaten(arm)]

    def apply(self) -> Outcome:
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
            return Outcome(VerdictKind.INCONCLUSIVE, None, None, text, (cap,))
        if self.comparison.excluded or (self.comparison.contract.different and self.on.get("level") == TRAINING_LEVEL):
            fields = [difference.field for difference in self.comparison.contract.different]
            cap = Cap(
                id="not-comparable",
                reason=f"the runs were not made under one contract ({', '.join(fields)} differ)",
                remedy=f"measuring all arms with the same {', '.join(fields)}",
            )
            text = statement.no_claim([cap.reason], self.comparison.not_ranked, contract=self.comparison.contract)
            return Outcome(VerdictKind.NOT_COMPARABLE, None, None, text, (cap,))
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
                memory_kind=arm.memory_kind,
                through_control=arm.through_control,
            )
            for arm in self.arms
        )

    def _beaten(self, arm: ArmSummary) -> bool:
        """The fastest arm is faster than this one beyond noise and threshold, with the whole interval."""
        interval = self.comparison.ratio(self.arms[0].label, arm.label)
        return interval is not None and math.log(interval.high) < -math.log1p(self.margin)

    def _single(self, only: ArmSummary) -> Outcome:
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
            text = statement.only_statement(only.label, self.on, statuses, self.comparison.contract)
            return Outcome(VerdictKind.ONLY_AVAILABLE, None, only, text)
        cap = Cap(
            id="arms-not-repeated",
            reason=f"not measured to the end in this stage: {', '.join(open_arms)}",
            remedy=f"launches of {only.label} and {', '.join(open_arms)} together",
        )
        text = statement.no_claim([cap.reason], statuses, self.on)
        return Outcome(VerdictKind.INCONCLUSIVE, None, only, text, (cap,))

    def _compared(self) -> Outcome:
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
                None if self.varying else caps.tuned_cap(self.question, self.comparison, best.label),
                caps.skew_cap(skew, best.label),
                mean_cap(self.compared, best.label, rivals, self.phase),
            ]
        else:
            pairs = self._intervals(best, [arm.label for arm in self.tied[1:]])
            found.append(resolution_cap(pairs, best.label, self.comparison.noise, self.threshold))
        holding = tuple(cap for cap in found if cap is not None)
        if holding:
            text = statement.no_claim([cap.reason for cap in holding], self.comparison.not_ranked, self.on)
            safe = self._simplest(self.arms)
            return Outcome(VerdictKind.INCONCLUSIVE, None, safe, text, holding, tuple(skew))
        statuses, contract = self.comparison.not_ranked, self.comparison.contract
        tail = statement.memory(self.arms, self.comparison.pareto) + statement.left_out(
            contract, self.comparison.excluded
        )
        tail += statement.unranked(statuses, contract)
        if won:
            text = statement.winner_statement(best.label, self._intervals(best, rivals), self.on) + tail
            return Outcome(VerdictKind.WINNER, best, best, text, skew=tuple(skew), attribution=self._attribution())
        tied = [arm.label for arm in self.tied]
        closest = self._intervals(best, tied[1:])
        text = statement.tie_statement(tied, self._advised(recommended), self.margin, closest[tied[1]], self.on) + tail
        return Outcome(
            VerdictKind.TIE, None, None if self.varying else recommended, text, attribution=self._attribution()
        )

    def _advised(self, arm: ArmSummary) -> str:
        """The tied arm to use; stacks are not simpler than each other."""
        return "" if self.varying else arm.label

    def _attribution(self) -> Attribution:
        """A setting that a backend needs changes more than the dispatcher; one that it does not read does not."""
        if self.varying:
            return Attribution(to="stack", changed=self.varying)
        table = contract_table()
        changed = [one.field for one in self.comparison.contract.disclosed if table.rule(one.field).needed_by]
        return Attribution(to="configuration" if changed else "dispatcher", changed=tuple(changed))

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
