"""What the gates and the topology of a job mean for it, as findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.flow.doctor_request import DoctorRequest
from moe_dispatch.site.agreement import Member
from moe_dispatch.site.agreement_text import names
from moe_dispatch.site.exchange import exchange_facts
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site
from moe_dispatch.site.rank_report import HostView
from moe_dispatch.site.topology import RankPlace, TopologyInput, check_topology

BASELINE = "alltoall"
"""What a job falls back to; without it nothing can be compared."""


def gate_findings(views: Mapping[str, HostView], require: Sequence[str]) -> list[Finding]:
    """What is wrong with backends: an error for one that is required and for an unusable baseline, else a warning.

    A package that is not installed, or does not offer what was asked, brings no finding unless it is required.
    """
    failed: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    results: dict[tuple[str, str, str], GateResult] = {}
    for host, view in views.items():
        for gate in view.gates:
            if not gate.available:
                failed[gate.backend][(gate.consumer, gate.reason)].append(host)
                results.setdefault((gate.backend, gate.consumer, gate.reason), gate)
    found = []
    for backend, reasons in failed.items():
        for (consumer, reason), hosts in reasons.items():
            gate = results[backend, consumer, reason]
            where = f" on {names(hosts)}" if len(views) > 1 else ""
            found += _gate_finding(gate, where, required=backend in require, any_required=bool(require))
    return found


def topology_findings(
    request: DoctorRequest,
    site: Site,
    views: Mapping[str, HostView],
    members: Sequence[Member],
    world: int | None,
    settings: Mapping[str, str],
    versions: Mapping[str, str | None],
) -> list[Finding]:
    """What the topology rules say about each backend that is usable or meant here.

    A backend is meant when it is required or named, or when a variable is set that only it reads; for the others an
    error of the rules does not stop the job, so it is a warning.
    """
    found: dict[tuple[str, str], Finding] = {}
    for name in request.specs():
        meant = name in (*request.require, *request.backends) or exchange_facts(name).domain_variable in settings
        if not (meant or site.declared or _usable(name, views)):
            continue
        job = TopologyInput(
            backend=name,
            site=site,
            ep=request.ep or 1,
            expert_tp=request.etp or 1,
            tp=request.tp or 1,
            pp=request.pp or 1,
            cp=request.cp or 1,
            world=world,
            ranks_per_node=None if world is None or len(views) == 0 else -(-world // len(views)),
            tokens_per_rank=request.tokens,
            environment=settings,
            versions=versions,
            placement=_placement(members, views),
        )
        for finding in check_topology(job):
            if finding.severity is Severity.ERROR and not meant:
                finding = finding.model_copy(update={"severity": Severity.WARNING})
            found.setdefault((finding.id, finding.message), finding)
    return list(found.values())


def lost_findings(lost: Iterable[int], blind: Sequence[str], limit_s: float) -> list[Finding]:
    """Ranks that arrived and went away, and hosts that were not looked at in time."""
    found = []
    gone = sorted(lost)
    if gone:
        found.append(
            Finding(
                id="ranks-lost",
                severity=Severity.ERROR,
                message=f"rank {', '.join(map(str, gone))} arrived and went away before the decision",
                why="what ends a rank here ends it in the job too",
                advice=("look at the output of those ranks",),
                source="measured",
            )
        )
    if blind:
        found.append(
            Finding(
                id="hosts-not-examined",
                severity=Severity.ERROR,
                message=f"nothing is known of the backends on {names(blind)} after {limit_s:g} s",
                why="the rank that looks for its host did not start, went away or hangs in a driver or file system",
                advice=("run `moe-dispatch doctor --alone` there; raise --probe-timeout on a slow file system",),
                source="measured",
            )
        )
    return found


def _gate_finding(gate: GateResult, where: str, *, required: bool, any_required: bool) -> list[Finding]:
    user = f" for {gate.consumer}" if gate.consumer else ""
    if required:
        identifier, severity, why = "required-backend-unusable", Severity.ERROR, "the job requires it"
    elif gate.backend == BASELINE and not any_required:
        identifier, severity = "baseline-unusable", Severity.ERROR
        why = "it is the fallback, and what everything else is compared with"
    elif gate.status != "broken":
        return []
    else:
        identifier, severity, why = "backend-broken", Severity.WARNING, "it is installed and cannot be used; others can"
    return [
        Finding(
            id=identifier,
            severity=severity,
            message=f"{gate.backend}{user}{where}: {gate.reason_class}: {gate.reason}",
            why=why,
            advice=(gate.fix,) if gate.fix else (),
            source="gate",
        )
    ]


def _usable(backend: str, views: Mapping[str, HostView]) -> bool:
    return any(gate.available for view in views.values() for gate in view.gates if gate.backend == backend)


def _placement(members: Sequence[Member], views: Mapping[str, HostView]) -> tuple[RankPlace, ...]:
    """Where ranks were seen; nothing when any rank's domain is unknown."""
    domains = {}
    for host, view in views.items():
        site = view.site
        domains[host] = site.domain_of() if site.is_multi_node_nvlink or site.nvlink_domain is None else host
    places = [RankPlace(rank=member.rank, host=member.host, domain=domains.get(member.host)) for member in members]
    return tuple(sorted(places, key=lambda place: place.rank))
