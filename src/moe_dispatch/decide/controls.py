"""Arms of environments that cannot be one (DeepEP V2 and HybridEP exclude each other): compared through a control.

Each environment ran the same control dispatcher. If the controls tie, the environments do as much for it, and the ratio
of each arm to the control of its own environment may be compared with the other's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.arms import Arm, gather
from moe_dispatch.decide.contract import check
from moe_dispatch.decide.contract_table import STACK_GROUP, contract_table
from moe_dispatch.decide.ratios import Resampling
from moe_dispatch.decide.stats import Interval
from moe_dispatch.evidence.record import Model, RunRecord

CONTROL_TOLERANCE = 0.04
"""Controls tie when their whole interval lies within this relative difference: twice the default threshold."""


class ControlCheck(Model):
    """One other environment.

    Fields:
        fields: of the stack, in which it differs.
        arms: that ran only there.
        interval: the control in the main environment over the control there.
    """

    control: str
    fields: tuple[str, ...]
    arms: tuple[str, ...]
    interval: Interval
    tied: bool


class Environment:
    """Records of another environment that hold the control, and arms that the main one lacks."""

    def __init__(self, records: Sequence[RunRecord], arms: dict[str, Arm], control: Arm, found: ControlCheck) -> None:
        self.records, self.arms, self.control, self.found = records, arms, control, found


def environments(
    chosen: Sequence[RunRecord], main: dict[str, Arm], base: str, groups: Sequence[Sequence[RunRecord]], how: Resampling
) -> list[Environment]:
    """Other groups of one question that differ from the chosen one in the stack only, and ran the control as well.

    Args:
        main: arms of the chosen group by label.
        base: label of the control.
        groups: the other groups, best first; an arm is taken from the first that has it.
    """
    phase = main[base].phase
    taken = set(main)
    found = []
    for group in groups:
        fields = tuple(difference.field for difference in check(chosen, group).different)
        arms = gather(group, phase)
        new = {label: arm for label, arm in arms.items() if label not in taken}
        only_stack = all(contract_table().rule(name).group == STACK_GROUP for name in fields)
        if base not in arms or not new or not fields or not only_stack:
            continue
        interval = how.ratio(main[base], arms[base])
        limit = math.log1p(CONTROL_TOLERANCE)
        tied = -limit <= math.log(interval.low) and math.log(interval.high) <= limit
        result = ControlCheck(control=base, fields=fields, arms=tuple(sorted(new)), interval=interval, tied=tied)
        taken |= set(new) if tied else set()
        found.append(Environment(group, new, arms[base], result))
    return found


def control_findings(checks: Sequence[ControlCheck]) -> list[Finding]:
    """Whether the controls of other environments tied."""
    findings = []
    for one in checks:
        span = f"{one.interval.low - 1:+.1%} to {one.interval.high - 1:+.1%}"
        where = f"{one.control} in the environment of {', '.join(one.arms)} ({', '.join(one.fields)} differ)"
        findings.append(
            Finding(
                id="controls-tie" if one.tied else "controls-differ",
                severity=Severity.INFO if one.tied else Severity.WARNING,
                message=f"{where}: the control here takes {span} of its time there more",
                why=(
                    "each arm is compared through its ratio to the control of its own environment"
                    if one.tied
                    else f"only controls within {CONTROL_TOLERANCE:.0%} show that the environments do not matter"
                ),
                advice=()
                if one.tied
                else (f"more launches of {one.control} in both, or one environment for all arms",),
                source="records",
            )
        )
    return findings
