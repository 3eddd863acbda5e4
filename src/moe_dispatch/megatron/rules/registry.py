"""Checks by the id of their rule, and the engine that runs them over a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.megatron.rules.catalogue import LintRule, load_lint_rules
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.settings import UnknownSetting


@dataclass(frozen=True)
class Hit:
    """One thing that a check found.

    Fields:
        values: for the rule's templates.
        severity: instead of the rule's own; fix: put before the rule's own.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    severity: Severity | None = None
    fix: tuple[str, ...] = ()


Check = Callable[[Job], Iterable[Hit]]

CHECKS: dict[str, Check] = {}
"""Checks by rule id."""


def rule(identifier: str) -> Callable[[Check], Check]:
    """Register a check for a rule of the catalogue."""

    def register(check: Check) -> Check:
        if identifier in CHECKS:
            raise ValueError(f"two checks for rule {identifier}")
        CHECKS[identifier] = check
        return check

    return register


@dataclass(frozen=True)
class Outcome:
    """Findings, and the rules that could not be judged with what they would have needed."""

    findings: tuple[Finding, ...]
    undecided: Mapping[str, str]


def run_rules(job: Job, rules: Mapping[str, LintRule] | None = None) -> Outcome:
    """Run every check that is about this framework and release."""
    findings: list[Finding] = []
    undecided: dict[str, str] = {}
    for each in (rules or load_lint_rules()).values():
        check = CHECKS.get(each.id)
        if check is None or not _is_about(each, job):
            continue
        try:
            hits = list(check(job))
        except UnknownSetting as missing:
            undecided[each.id] = missing.name
            continue
        findings += _findings(each, hits, job)
    return Outcome(tuple(findings), undecided)


def _is_about(each: LintRule, job: Job) -> bool:
    if each.framework not in (None, job.config.framework):
        return False
    return each.holds_for(job.config.core_version) is not False


def _findings(each: LintRule, hits: Iterable[Hit], job: Job) -> Iterator[Finding]:
    for hit in hits:
        yield each.finding(hit.values, severity=hit.severity, fix=hit.fix, core_version=job.config.core_version)
