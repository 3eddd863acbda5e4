"""What a verdict holds: kind, claim, evidence, and what stands against it."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.acceptance import Acceptance
from moe_dispatch.decide.arms import ArmStatus
from moe_dispatch.decide.caps import SkewCheck
from moe_dispatch.decide.contract import ContractCheck
from moe_dispatch.decide.controls import ControlCheck
from moe_dispatch.decide.stats import Interval, NoiseFloor
from moe_dispatch.evidence.record import Model


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
        memory_kind: field of `Memory` that `memory_bytes` is; empty where not all arms know one.
        through_control: measured in another environment; `median_us` is its ratio to the control there times the
            control's time here.
    """

    choice: Choice
    ratio: Interval | None
    standing: str
    median_us: float
    launches: int
    iterations: int
    memory_bytes: int | None
    labels: tuple[str, ...]
    memory_kind: str = ""
    through_control: bool = False


class Attribution(Model):
    """What a difference in time may be credited to.

    Fields:
        to: the `dispatcher`; its whole `configuration`, where other settings had to change with it; the `stack`; or
            `nothing`, where the records do not answer.
        changed: contract fields that changed along with it.
    """

    to: Literal["dispatcher", "configuration", "stack", "nothing"]
    changed: tuple[str, ...] = ()


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
        attribution: what the difference may be credited to, and nothing beyond.
        acceptance: how far a training comparison goes; None for other levels.
        controls: other environments, compared through a control dispatcher.
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
    attribution: Attribution = Attribution(to="nothing")
    acceptance: Acceptance | None = None
    controls: tuple[ControlCheck, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether a command that was asked for just this comparison may exit 0: valid, and no arm was refused."""
        return self.kind.valid and not any(finding.severity is Severity.ERROR for finding in self.findings)
