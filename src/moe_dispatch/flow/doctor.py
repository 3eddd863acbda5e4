"""`doctor`: look at the machine and the backends on every rank of a launch, compare, and decide once for all of them.

Alone it examines this machine. Under torchrun, srun or mpirun all ranks meet at rank 0, which decides; every rank ends
with the same exit code and only rank 0 has something to print. Reports written to files are compared without network.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Finding
from moe_dispatch.core.registry import load_backends_with_findings
from moe_dispatch.flow.doctor_findings import gate_findings, lost_findings, topology_findings
from moe_dispatch.flow.doctor_host import look_at_host
from moe_dispatch.flow.doctor_meeting import meet
from moe_dispatch.flow.doctor_meeting_parts import Gathered, Limits, OwnPart
from moe_dispatch.flow.doctor_request import DoctorRequest
from moe_dispatch.site.agreement import (
    Decision,
    Member,
    agree,
    comparable,
    comparable_view,
    decide,
    grouped,
    host_names,
)
from moe_dispatch.site.examination import Examination, HostGates
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.site.model import Site
from moe_dispatch.site.rank_context import RankContext, rank_context
from moe_dispatch.site.rank_report import HostView, RankReport, report_rank, start_environment

PROBE_GRACE_S = 20.0
"""Beyond the limit of one probe: interpreter start, and a driver query that is killed."""


@dataclass(frozen=True)
class Ended:
    """How this rank ends.

    Fields:
        examination: everything, on the rank that prints; None on the others.
    """

    exit_code: int
    examination: Examination | None = None


def run_doctor(request: DoctorRequest) -> Ended:
    """Examine this machine, a declared site, or together with all ranks of this launch (collective then).

    Raises:
        UsageError: the request or the launcher's variables make no sense.
        LaunchError: the ranks of a launch did not find each other.
    """
    request.check()
    request.specs()
    environment = start_environment()
    context = RankContext() if request.alone or request.site else rank_context(environment)
    report = report_rank(context, environment)
    if request.site is not None:
        site = declared_site(request.site, request.nodes or 1)
        return _ended(_examine(request, report, agree([report]), {}, [], site))
    if context.world > 1:
        return _together(request, context, report, environment)
    view = look_at_host(request, environment, for_all_ranks=False)
    report = report.model_copy(update={"view": view})
    return _ended(_examine(request, report, agree([report]), {report.host: view}, []))


def own_report(request: DoctorRequest) -> RankReport:
    """This rank's report, for a comparison by files; meets nobody.

    Raises:
        UsageError: the request or the launcher's variables make no sense.
    """
    request.check()
    environment = start_environment()
    context = RankContext() if request.alone else rank_context(environment)
    many = context.world > 1
    view = look_at_host(request, environment, for_all_ranks=many) if context.probes_for_host else None
    return report_rank(context, environment, view)


def merge_reports(request: DoctorRequest, reports: Mapping[Path, RankReport]) -> Ended:
    """Decide from reports that all ranks of one launch wrote.

    Raises:
        UsageError: no report, or reports of several launches.
    """
    request.check()
    if not reports:
        raise UsageError("--merge needs the reports of the ranks", "doctor --merge FOLDER, or doctor --merge FILE...")
    by_job: dict[str, Path] = {}
    for path, report in reports.items():
        by_job.setdefault(report.job, path)
    if len(by_job) > 1:
        (job, path), (other, other_path) = list(by_job.items())[:2]
        raise UsageError(
            f"{path} is of launch {job or 'without a name'!r}, {other_path} of {other or 'without a name'!r}",
            "give the reports of one launch; remove those of earlier ones",
        )
    ordered = sorted(reports.values(), key=lambda report: report.rank)
    hosts = host_names(ordered)
    views = {host: report.view for host, report in zip(hosts, ordered, strict=True) if report.view is not None}
    blind = sorted(set(hosts) - set(views))
    members = [Member(rank=report.rank, host=host) for report, host in zip(ordered, hosts, strict=True)]
    findings = lost_findings((), blind, request.probe_s)
    return _ended(_examine(request, ordered[0], agree(ordered), views, members, more=findings))


def _together(
    request: DoctorRequest, context: RankContext, report: RankReport, environment: Mapping[str, str]
) -> Ended:
    """Meet the other ranks while this one looks at its host."""
    view: Future[HostView] = Future()
    made: list[Examination] = []
    limits = Limits(arrive_s=request.arrive_s, view_s=request.probe_s + PROBE_GRACE_S)

    def conclude(gathered: Gathered) -> Decision:
        examination = _conclude(request, report, context, gathered, limits)
        made.append(examination)
        return examination.decision

    own = OwnPart(host=socket.gethostname(), sections=comparable(report), view=view)
    meeting = meet(context, own, conclude, limits, request.port)
    if context.probes_for_host:
        try:
            view.set_result(look_at_host(request, environment, for_all_ranks=True))
        except BaseException as error:
            view.set_exception(error)
            raise
    decision = meeting.result()
    return Ended(decision.exit_code, made[0] if made else None)


def _conclude(
    request: DoctorRequest, report: RankReport, context: RankContext, gathered: Gathered, limits: Limits
) -> Examination:
    first_rank = {member.host: member.rank for member in sorted(gathered.members, key=lambda one: -one.rank)}
    of_hosts = grouped((first_rank[host], comparable_view(view)) for host, view in gathered.views.items())
    decision = decide(
        members=gathered.members,
        world=gathered.world,
        groups={**of_hosts, **gathered.groups},
        gates=[view.gates for view in gathered.views.values()],
        expected_hosts=context.hosts,
    )
    findings = lost_findings(gathered.lost, gathered.blind, limits.view_s)
    return _examine(request, report, decision, gathered.views, gathered.members, more=findings)


def _examine(
    request: DoctorRequest,
    report: RankReport,
    decision: Decision,
    views: Mapping[str, HostView],
    members: Sequence[Member],
    declared: Site | None = None,
    more: Sequence[Finding] = (),
) -> Examination:
    """Add to a decision what gates and topology say, and put all of it together."""
    site = declared or _site_of_job(report, decision, views)
    world = decision.world if decision.world > 1 else None
    versions = {} if site.declared else report.versions  # packages here say nothing about a declared site
    findings = [
        *decision.findings,
        *more,
        *(load_backends_with_findings()[1]),
        *dict.fromkeys(finding for view in views.values() for finding in view.findings),
        *gate_findings(views, request.require),
        *topology_findings(request, site, views, members, world, report.settings, versions),
    ]
    return Examination(
        site=site,
        decision=decision.model_copy(update={"findings": tuple(findings)}),
        hosts=tuple(HostGates(host=host, gates=view.gates) for host, view in views.items()),
        required=request.require,
        versions=versions,
        libraries={} if site.declared else report.libraries,
        settings=report.settings,
        fingerprint=None if site.declared else report.fingerprint,
    )


def _site_of_job(report: RankReport, decision: Decision, views: Mapping[str, HostView]) -> Site:
    """The machine of the first host that was looked at, with all hosts that were heard."""
    first = next(iter(views.values()), None)
    if first is None:
        return Site(name=report.host, declared=False, device="cpu", hosts=decision.hosts)
    return first.site.model_copy(update={"nodes": len(decision.hosts), "hosts": decision.hosts})


def _ended(examination: Examination) -> Ended:
    return Ended(examination.decision.exit_code, examination)
