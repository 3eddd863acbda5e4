"""Contract check: a field is equal, different or unknown, and only records without a difference are compared.

Labels are part of the contract, except those that belong to one arm. Field names are `workload.tp`, `stack.torch`, ...
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.evidence.record import Model, RunRecord

GROUPS = ("workload", "measure", "site", "stack")
ARM_LABELS = frozenset({"untuned"})
"""Labels that say something about one arm; they may differ between arms and are carried into the statement."""

REQUIRED = (
    "workload.model",
    "workload.tokens_per_rank",
    "workload.dtype",
    "workload.routing",
    "measure.level",
    "site.device",
    "site.device_name",
    "site.transport",
    "site.nodes",
    "site.ranks",
    "stack.torch",
)
"""Fields without which no statement could say what it is about: unknown where a record leaves them out altogether."""

_WHY = {
    "workload.routing": "forced, natural and skewed routing are different workloads",
    "labels": "a label says that the numbers mean something else (fewer tokens, shared devices, synthetic data)",
    "workload.tokens_per_rank": "time does not grow in proportion to tokens, so it cannot be converted",
}
_DEFAULT_WHY = "the difference may come from this field instead of the dispatcher"


class Difference(Model):
    """One field that kept arms apart: value (as JSON text) to the arms that ran with it."""

    field: str
    arms_of_value: dict[str, tuple[str, ...]]


class ContractCheck(Model):
    """Outcome over the records that are compared.

    Fields:
        equal: fields that are known and equal in all of them.
        different: fields in which other records of the same question differ from these; those are not compared.
        unknown: fields unknown in at least one of them, or required and in none, and not attested.
        attested: unknown fields that the user vouches for.
    """

    equal: dict[str, Any] = Field(default_factory=dict)
    different: tuple[Difference, ...] = ()
    unknown: tuple[str, ...] = ()
    attested: tuple[str, ...] = ()


def contract_fields(record: RunRecord) -> dict[str, Any]:
    """All fields by dotted name, labels included; None means unknown."""
    fields = {f"{group}.{name}": value for group in GROUPS for name, value in getattr(record.contract, group).items()}
    fields["labels"] = sorted(set(record.labels) - ARM_LABELS)
    return fields


def partition(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Split records into groups that do not differ in any known field, the largest questions first.

    A field with one known value does not split (the others are unknown). Where several values are known, a record that
    does not know its own stands apart: it could belong to either side.
    """
    known: dict[str, set[str]] = {}
    texts = [_texts(record) for record in records]
    for text in texts:
        for name, value in text.items():
            known.setdefault(name, set()).add(value)
    splitting = sorted(name for name, values in known.items() if len(values) > 1)
    groups: dict[tuple[str | None, ...], list[RunRecord]] = {}
    for record, text in zip(records, texts, strict=True):
        groups.setdefault(tuple(text.get(name) for name in splitting), []).append(record)
    return list(groups.values())


def check(chosen: Sequence[RunRecord], others: Sequence[RunRecord], attest: Iterable[str] = ()) -> ContractCheck:
    """Check the chosen records (one group of `partition`) against each other and against the ones left out.

    Args:
        attest: fields the user vouches for, dotted or bare names.

    Raises:
        UsageError: an attested name that is no field of these contracts.
    """
    texts = [(record.choice.label, _texts(record)) for record in (*chosen, *others)]
    ours = [text for _, text in texts[: len(chosen)]]
    named = {name for record in (*chosen, *others) for name in contract_fields(record)}
    names = sorted(named | set(REQUIRED)) if chosen else sorted(named)
    vouched = _resolve(attest, names)
    equal: dict[str, Any] = {}
    unknown: list[str] = []
    for name in names:
        values = {text.get(name) for text in ours}
        if len(values) == 1 and None not in values:
            equal[name] = contract_fields(chosen[0])[name]
        elif name in REQUIRED or any(name in contract_fields(record) for record in chosen):
            unknown.append(name)
    return ContractCheck(
        equal=equal,
        different=_differences(texts, names),
        unknown=tuple(name for name in unknown if name not in vouched),
        attested=tuple(name for name in unknown if name in vouched),
    )


def contract_findings(result: ContractCheck, compared: Iterable[str]) -> list[Finding]:
    """Differences that kept an arm out are errors; differences with extra records of compared arms are information."""
    inside = set(compared)
    findings = [_difference_finding(difference, inside) for difference in result.different]
    if result.unknown:
        findings.append(
            Finding(
                id="contract-unknown",
                severity=Severity.WARNING,
                message=f"not known to be equal: {', '.join(result.unknown)}",
                why="an unknown field may hold the real difference; a verdict is capped at inconclusive",
                advice=("record these fields, or vouch for them with --attest FIELD",),
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


def _difference_finding(difference: Difference, compared: set[str]) -> Finding:
    name = difference.field.rpartition(".")[2].replace("_", "-")
    parts = [f"{value} for {', '.join(arms)}" for value, arms in difference.arms_of_value.items()]
    kept_out = {arm for arms in difference.arms_of_value.values() for arm in arms} - compared
    return Finding(
        id=f"confounded-{name}",
        severity=Severity.ERROR if kept_out or not compared else Severity.INFO,
        message=f"{difference.field} differs: {'; '.join(parts)}",
        why=_WHY.get(difference.field, _DEFAULT_WHY),
        advice=(f"measure all arms with the same {difference.field}",),
        source="contract",
    )


def _differences(texts: Sequence[tuple[str, dict[str, str]]], names: Iterable[str]) -> tuple[Difference, ...]:
    found = []
    for name in names:
        arms: dict[str, set[str]] = {}
        for label, text in texts:
            arms.setdefault(text.get(name, "unknown"), set()).add(label)
        if len(arms.keys() - {"unknown"}) > 1:
            ordered = {value: tuple(sorted(labels)) for value, labels in sorted(arms.items())}
            found.append(Difference(field=name, arms_of_value=ordered))
    return tuple(found)


def _resolve(attest: Iterable[str], names: Sequence[str]) -> set[str]:
    resolved: set[str] = set()
    for wanted in attest:
        matches = [name for name in names if wanted in (name, name.rpartition(".")[2])]
        if not matches:
            raise UsageError(
                f"cannot attest {wanted!r}: the contract has no such field", f"allowed: {', '.join(names)}"
            )
        resolved.update(matches)
    return resolved


def _texts(record: RunRecord) -> dict[str, str]:
    fields = contract_fields(record)
    return {name: json.dumps(value, sort_keys=True) for name, value in fields.items() if value is not None}
