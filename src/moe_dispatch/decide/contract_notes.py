"""Findings about a contract: what was refused, disclosed, unknown, or taken on the user's word."""

from __future__ import annotations

from collections.abc import Iterable

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.contract import ContractCheck, Difference
from moe_dispatch.decide.contract_table import DifferenceClass

_PREFIX = {
    DifferenceClass.CONFOUNDER: "confounded",
    DifferenceClass.DISPATCHER_COUPLED: "coupled",
    DifferenceClass.CONTROLLED: "controlled",
}


def contract_findings(result: ContractCheck, compared: Iterable[str]) -> list[Finding]:
    """Differences that kept an arm out are errors; differences with extra records of compared arms are information."""
    inside = set(compared)
    findings = [_refused(difference, inside) for difference in result.different]
    findings += [_told(one) for one in result.disclosed if one.kind is not DifferenceClass.HARMLESS]
    if result.unknown:
        findings.append(
            Finding(
                id="contract-unknown",
                severity=Severity.WARNING,
                message=f"not known to be equal: {', '.join(result.unknown)}",
                why="an unknown field may hold the real difference; a verdict is capped at inconclusive",
                advice=("record these fields, or vouch for them with --attest FIELD (or --attest GROUP)",),
                source="contract",
            )
        )
    if result.attested:
        findings.append(
            Finding(
                id="contract-attested",
                severity=Severity.INFO,
                message=f"taken as equal on the user's word: {', '.join(result.attested)}",
                source="contract",
            )
        )
    return findings


def _refused(difference: Difference, compared: set[str]) -> Finding:
    kept_out = {arm for arms in difference.arms_of_value.values() for arm in arms} - compared
    return Finding(
        id=_id(difference),
        severity=Severity.ERROR if kept_out or not compared else Severity.INFO,
        message=f"{difference.field} differs: {difference.text}",
        why=difference.why,
        advice=(f"measure all arms with the same {difference.field}",),
        source="contract",
    )


def _told(difference: Difference) -> Finding:
    return Finding(
        id=_id(difference),
        severity=Severity.INFO,
        message=f"{difference.field} differs with the dispatcher: {difference.text}",
        why=difference.why,
        source="contract",
    )


def _id(difference: Difference) -> str:
    name = difference.field.rpartition(".")[2].replace("_", "-").lower()
    return f"{_PREFIX[difference.kind]}-{name}"
