"""A declared site that is not this machine: the advice for it, expected traffic and configurations; nothing is run.

A verdict never transfers from one site to another, so there is none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from moe_dispatch.core.finding import Finding
from moe_dispatch.core.registry import load_backends_with_findings
from moe_dispatch.decide.advice import Advice
from moe_dispatch.decide.advise import Question, advise
from moe_dispatch.decide.ceiling import ceiling
from moe_dispatch.decide.guide import Candidate
from moe_dispatch.flow.events import Listener
from moe_dispatch.flow.request import SelectRequest
from moe_dispatch.flow.setup import load
from moe_dispatch.megatron.emit import Emitted
from moe_dispatch.site.hardware import declared_site, is_this_machine
from moe_dispatch.site.model import Site
from moe_dispatch.site.probe import probe
from moe_dispatch.workload.traffic import expected_rows
from moe_dispatch.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class PlanOnly:
    """What can be said without measuring.

    Fields:
        advice: the guide's, with settings; `advise` prints all of it.
        expected_rows: per source rank and direction, by name; empty when the group does not fit the domains.
        findings: about backends that others registered, and about the job on this site.
    """

    workload: Workload
    site: Site
    advice: Advice
    expected_rows: dict[str, float]
    findings: tuple[Finding, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All backends in the order of the guide."""
        return tuple(one.candidate for one in self.advice.candidates)

    @property
    def configurations(self) -> dict[str, Emitted]:
        """By dispatcher, of the included candidates that Megatron ships."""
        return {one.name: one.configuration for one in self.advice.included if one.configuration is not None}

    @property
    def not_configured(self) -> dict[str, str]:
        """By dispatcher, why the others have none."""
        return {one.name: one.not_configured for one in self.advice.included if one.configuration is None}


def plan_only(request: SelectRequest, listener: Listener) -> PlanOnly | None:
    """The plan for the declared site; None when that site is this machine, which is then measured.

    Raises:
        UsageError: unknown site.
        WorkloadError: unknown or impossible workload.
    """
    assert request.site is not None
    site = declared_site(request.site, request.nodes)
    if is_this_machine(site, probe(request.nodes)):
        listener.note(f"{site.name} is this machine: measuring here")
        return None
    workload = load(request.measure)
    specs, findings = load_backends_with_findings()
    advice = advise(
        Question(
            workload=workload,
            site=site,
            specs=specs,
            core_version=request.core_version,
            ceiling=ceiling(None),
            arguments=request.measure.workload,
            place=f"--site {request.site} --nodes {site.nodes}",
        )
    )
    return PlanOnly(
        workload=workload,
        site=site,
        advice=advice,
        expected_rows=_expected(workload, site),
        findings=(*findings, *advice.findings),
    )


def document(plan: PlanOnly) -> dict[str, Any]:
    """The machine-readable plan."""
    return {
        "schema_version": 1,
        "verdict": None,
        "why": "a verdict never transfers: the declared site is not this machine, so nothing was measured",
        "workload": plan.workload.contract_fields(),
        "site": plan.site.model_dump(mode="json"),
        "ceiling": plan.advice.ceiling.model_dump(mode="json"),
        "confidence": plan.advice.confidence.statement,
        "next": list(plan.advice.next),
        "candidates": [candidate.model_dump(mode="json") for candidate in plan.candidates],
        "configurations": {name: emitted.model_dump(mode="json") for name, emitted in plan.configurations.items()},
        "not_configured": plan.not_configured,
        "expected_rows_per_rank": plan.expected_rows,
        "findings": [finding.model_dump(mode="json") for finding in plan.findings],
    }


def _expected(workload: Workload, site: Site) -> dict[str, float]:
    ep, router = workload.layout.ep, workload.model.router
    inside = site.ranks_per_domain(ep)
    if inside is None or ep % inside:
        return {}
    rows = expected_rows(
        workload.model.num_experts,
        workload.model.topk,
        ep,
        inside,
        workload.tokens_per_rank,
        routing=workload.routing_spec,
        num_groups=router.num_groups,
        group_topk=router.group_topk,
    )
    return {name: value for name, value in asdict(rows).items() if name.startswith("rows_")}
