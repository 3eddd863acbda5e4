"""Time beside memory: arms that no other arm beats in both."""

from __future__ import annotations

from collections.abc import Sequence

from moe_dispatch.decide.arms import ArmSummary


def pareto(arms: Sequence[ArmSummary]) -> tuple[str, ...]:
    """Labels of arms that no other beats in time without losing in memory; by time alone where memory is unknown."""

    def beaten(arm: ArmSummary) -> bool:
        here = (arm.median_us, arm.memory_bytes or 0)
        pairs = [(other.median_us, other.memory_bytes or 0) for other in arms]
        return any(time <= here[0] and memory <= here[1] and (time, memory) != here for time, memory in pairs)

    return tuple(arm.label for arm in sorted(arms, key=lambda one: one.median_us) if not beaten(arm))
