"""Findings that a verdict adds to those of the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.acceptance import Acceptance, AcceptanceLevel
from moe_dispatch.decide.caps import Cap
from moe_dispatch.decide.stats import NoiseFloor

_REPORTED_ELSEWHERE = frozenset({"contract-unknown"})


def cap_findings(caps: Iterable[Cap], *, refused: bool) -> list[Finding]:
    """One for each reason that keeps the verdict back; an error when the comparison was refused."""
    severity = Severity.ERROR if refused else Severity.WARNING
    return [
        Finding(id=cap.id, severity=severity, message=cap.reason, advice=(cap.remedy,), source="verdict")
        for cap in caps
        if cap.id not in _REPORTED_ELSEWHERE
    ]


def skew_findings(on: Mapping[str, Any]) -> list[Finding]:
    """A winner that was not repeated on a skewed routing."""
    return [
        Finding(
            id="skew-not-measured",
            severity=Severity.WARNING,
            message=f"the winner was measured on {on.get('routing') or 'unknown'} routing only",
            why="skewed routing moves load to few ranks and can reverse the order",
            advice=("repeat baseline and winner on a skewed routing",),
            source="verdict",
        )
    ]


def drift_findings(noise: NoiseFloor | None) -> list[Finding]:
    """A baseline that differs from itself."""
    if noise is None or not noise.drifted:
        return []
    gap = f"{noise.interval.ratio - 1:+.1%}"
    return [
        Finding(
            id="baseline-drifts",
            severity=Severity.WARNING,
            message=f"the baseline differs from itself by {gap} between even and odd {noise.method}",
            why="warm-up, clocks or neighbours changed during the run; the noise floor was raised to cover it",
            advice=("more warm-up iterations, or a quieter machine",),
            source="verdict",
        )
    ]


def acceptance_findings(found: Acceptance | None) -> list[Finding]:
    """A training comparison that does not accept a dispatcher for the job."""
    if found is None or found.level is AcceptanceLevel.ACCEPTED:
        return []
    screen = found.level is AcceptanceLevel.SCREEN
    return [
        Finding(
            id=f"acceptance-{found.level.value}",
            severity=Severity.WARNING if screen else Severity.INFO,
            message=f"these training runs are a {found.text}",
            why="few steps or forced routing show what is worth a longer run, not what the job will do",
            advice=found.missing,
            source="verdict",
        )
    ]
