"""Findings for one configuration: what really runs, the lint rules, and the topology rules of its site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.megatron.effective import Effective, effective_dispatcher
from moe_dispatch.megatron.rules import (
    bridge,
    deepep,
    dispatcher,
    environment,
    graphs,
    hybridep,
    layout,
    ncclep,
    overlap,
    precision,
    recompute,
    routing,
    versions,
)
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import run_rules
from moe_dispatch.megatron.rules.topology import topology_findings
from moe_dispatch.megatron.settings import MegatronConfig, UnknownSetting
from moe_dispatch.site.model import Site

RULE_MODULES = (
    dispatcher,
    routing,
    deepep,
    hybridep,
    ncclep,
    overlap,
    graphs,
    recompute,
    precision,
    layout,
    environment,
    bridge,
    versions,
)
"""Importing them registers their checks."""

_ORDER = list(Severity)


@dataclass(frozen=True)
class LintResult:
    """What lint says.

    Fields:
        effective: None when overrides do not tell the dispatcher.
        findings: errors first.
        undecided: rule id -> the setting or fact that it would have needed.
    """

    config: MegatronConfig
    effective: Effective | None
    findings: tuple[Finding, ...]
    undecided: Mapping[str, str]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is an error."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def lint(
    config: MegatronConfig, site: Site | None = None, packages: Mapping[str, str | None] | None = None
) -> LintResult:
    """Judge a configuration; never raises for what it holds.

    Args:
        site: where it runs; without it, rules that need GPU, nodes or network stay silent.
        packages: component -> version, keys of `site.stack.stack_fingerprint`; absent ones are unknown.
    """
    try:
        effective = effective_dispatcher(config, site)
    except UnknownSetting:
        effective = None
    job = Job(config=config, effective=effective, site=site, packages=packages or {})
    outcome = run_rules(job)
    topology, needed = topology_findings(job)
    found = [*(effective.findings if effective else ()), *outcome.findings, *topology]
    undecided = dict(outcome.undecided)
    if needed:
        undecided["topology"] = needed
    ordered = sorted(dict.fromkeys(found), key=lambda finding: _ORDER.index(finding.severity))
    return LintResult(config, effective, tuple(ordered), undecided)
