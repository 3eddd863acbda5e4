"""Findings about how the arms of a comparison were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.arms import Arm, ArmStatus, status_findings, straggler_finding
from moe_dispatch.decide.contract import ContractCheck
from moe_dispatch.decide.contract_notes import contract_findings
from moe_dispatch.decide.controls import ControlCheck, control_findings


def comparison_findings(
    arms: Mapping[str, Arm],
    contract: ContractCheck,
    controls: Sequence[ControlCheck],
    not_ranked: Sequence[ArmStatus],
    wanted: str | None,
    base: Choice | None,
) -> list[Finding]:
    """Contract first, then controls, baseline, launches, stragglers, and what carries no timing."""
    findings = contract_findings(contract, arms if len(arms) > 1 else ())
    findings += control_findings(controls)
    if wanted and base and wanted not in (base.label, base.dispatcher):
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


def _interleaved(arms: Mapping[str, Arm], base: Choice) -> bool:
    keys = arms[base.label].records.keys()
    return all(arm.interleaved and arm.records.keys() & keys for arm in arms.values())
