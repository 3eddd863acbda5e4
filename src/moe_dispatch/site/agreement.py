"""Do all ranks of a job agree? One decision from the reports of all of them, so that no rank can decide otherwise.

Ranks that judge alone can pick different dispatchers in one process group and hang each other
(awslabs/awsome-distributed-ai#1242). Fields are compared in groups of equal ranks, so that a caller who knows digests
needs the full fields of one rank in each group only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.site.agreement_policy import Section, compared, weight
from moe_dispatch.site.agreement_text import describe_differences, names, ranges
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.rank_report import HostView, RankReport, digest

SECTIONS: tuple[Section, ...] = get_args(Section)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Member(_Model):
    """A rank that was heard; `host` is unique for each node, unlike a host's own name for itself."""

    rank: int
    host: str


class Holder(_Model):
    """Who has one value of a field; None: it is not set there."""

    value: str | None
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]


class Difference(_Model):
    """A field that is not equal on all ranks."""

    section: Section
    field: str
    severity: Severity
    holders: tuple[Holder, ...]


class Group(_Model):
    """Ranks whose fields of one section are equal."""

    fields: dict[str, str]
    ranks: tuple[int, ...]


class Decision(_Model):
    """What holds for the whole job.

    Fields:
        world: ranks that the job has; ranks: those that were heard; missing: those that were not.
        hosts: nodes that were heard.
        usable: backends whose gate passed on every host that was heard; empty when none was asked.
        findings: what is wrong; an error makes every rank exit with 1.
    """

    world: int
    ranks: int
    hosts: tuple[str, ...]
    missing: tuple[int, ...] = ()
    usable: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 with a finding of severity error, else 0: the same on every rank."""
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))


def agree(reports: Sequence[RankReport]) -> Decision:
    """One decision from full reports, in any order.

    Raises:
        ValueError: no report.
    """
    if not reports:
        raise ValueError("a decision needs at least one report")
    members = [Member(rank=report.rank, host=host) for report, host in zip(reports, host_names(reports), strict=True)]
    return decide(
        members=members,
        world=max(report.world for report in reports),
        groups=grouped((report.rank, comparable(report)) for report in reports),
        gates=[report.view.gates for report in reports if report.view is not None],
    )


def decide(
    *,
    members: Sequence[Member],
    world: int,
    groups: Mapping[Section, Sequence[Group]],
    gates: Sequence[Sequence[GateResult]] = (),
    expected_hosts: Sequence[str] = (),
) -> Decision:
    """One decision from ranks that were heard and what they differ in.

    Args:
        groups: by section, one entry for each distinct set of fields.
        gates: of each host.
        expected_hosts: nodes of the job where its launcher tells; those not heard are named.
    """
    host_of = {member.rank: member.host for member in members}
    differences = [found for section in SECTIONS for found in _differences(section, groups.get(section, ()), host_of)]
    heard = list(dict.fromkeys(member.host for member in sorted(members, key=lambda member: member.rank)))
    missing = tuple(rank for rank in range(world) if rank not in host_of)
    silent = [host for host in expected_hosts if not any(_same_host(host, other) for other in heard)]
    findings = [
        *_missing_finding(missing, world, heard, silent),
        *_twice_finding(members),
        *_difference_finding(differences, Severity.ERROR),
        *_difference_finding(differences, Severity.WARNING),
    ]
    return Decision(
        world=world,
        ranks=len(host_of),
        hosts=tuple(heard),
        missing=missing,
        usable=_usable(gates),
        differences=tuple(differences),
        findings=tuple(findings),
    )


def comparable(report: RankReport) -> dict[Section, dict[str, str]]:
    """What other ranks compare with theirs, by section; sections that this rank did not look at are left out."""
    sections: dict[Section, Mapping[str, str | None]] = {
        "launch": {"world size": str(report.world), "launcher": report.launcher},
        "settings": report.settings,
        "versions": report.versions,
        "libraries": report.libraries,
    }
    if report.view is not None:
        sections.update(comparable_view(report.view))
    return {section: compared(section, fields) for section, fields in sections.items()}


def comparable_view(view: HostView) -> dict[Section, dict[str, str]]:
    """What hosts compare with other hosts."""
    site = view.site
    memory = f"{site.gpu_memory_bytes / 2**30:.0f} GiB" if site.gpu_memory_bytes else None
    machine = {
        "gpu_name": site.gpu_name or "none",
        "gpus_per_node": str(site.gpus_per_node),
        "gpu_memory": memory,
        "fabric": site.fabric,
        "cuda": site.cuda,
        "cores": str(site.cores),
        "cpu_model": site.cpu_model,
        "nics": ", ".join(sorted(f"{nic.kind} {nic.rate_gbps or '?'} Gbit/s" for nic in site.nics)),
        "container": site.container.image or site.container.runtime if site.container else None,
    }
    backends = {f"{gate.backend} for {gate.consumer}": _gate_text(gate) for gate in view.gates}
    return {"machine": compared("machine", machine), "backends": compared("backends", backends)}


def grouped(sections: Iterable[tuple[int, Mapping[Section, dict[str, str]]]]) -> dict[Section, list[Group]]:
    """Equal ranks by section, from (rank, fields by section)."""
    found: dict[Section, dict[str, tuple[dict[str, str], list[int]]]] = {section: {} for section in SECTIONS}
    for rank, fields_of in sections:
        for section, fields in fields_of.items():
            found[section].setdefault(digest(fields), (fields, []))[1].append(rank)
    return {
        section: [Group(fields=fields, ranks=tuple(sorted(ranks))) for fields, ranks in equal.values()]
        for section, equal in found.items()
    }


def host_names(reports: Sequence[Any]) -> list[str]:
    """A unique name for the node of each report: its host's name, with the node's number where two nodes share it.

    Args:
        reports: anything with `host` and `node`.
    """
    nodes: dict[str, set[int | None]] = defaultdict(set)
    for report in reports:
        nodes[report.host].add(report.node)
    return [f"{report.host} (node {report.node})" if len(nodes[report.host]) > 1 else report.host for report in reports]


def _gate_text(gate: GateResult) -> str:
    package = " ".join(part for part in (gate.provider, gate.version) if part)
    reached = gate.level_reached if gate.available else f"{gate.level_reached}, {gate.reason_class}"
    return f"{reached} ({package})" if package else reached


def _differences(section: Section, groups: Sequence[Group], host_of: Mapping[int, str]) -> list[Difference]:
    found = []
    for field in sorted({field for group in groups for field in group.fields}):
        ranks_of: dict[str | None, list[int]] = defaultdict(list)
        for group in groups:
            ranks_of[group.fields.get(field)] += group.ranks
        if len(ranks_of) < 2:
            continue
        holders = [
            Holder(
                value=value,
                hosts=tuple(dict.fromkeys(host_of[rank] for rank in sorted(ranks))),
                ranks=tuple(sorted(ranks)),
            )
            for value, ranks in ranks_of.items()
        ]
        severity = Severity(weight(section, field))
        ordered = tuple(sorted(holders, key=lambda holder: holder.ranks))
        found.append(Difference(section=section, field=field, severity=severity, holders=ordered))
    return found


def _usable(gates: Sequence[Sequence[GateResult]]) -> tuple[str, ...]:
    """Backends that passed for every consumer on every host, in the order of the first host."""
    results = [result for host in gates for result in host]
    failed = {result.backend for result in results if not result.available}
    return tuple(name for name in dict.fromkeys(result.backend for result in results) if name not in failed)


def _same_host(expected: str, heard: str) -> bool:
    """Whether two names mean one node, domain left aside and a node number that was added."""
    return expected.partition(".")[0] == heard.partition(" ")[0].partition(".")[0]


def _difference_finding(differences: Iterable[Difference], severity: Severity) -> list[Finding]:
    chosen = [difference for difference in differences if difference.severity is severity]
    if not chosen:
        return []
    error = severity is Severity.ERROR
    return [
        Finding(
            id="ranks-differ" if error else "ranks-differ-harmlessly",
            severity=severity,
            message=describe_differences(chosen),
            why=(
                "ranks of one process group that choose or configure a dispatcher differently hang or exchange garbage"
                if error
                else "between alike hosts these should be equal; they seldom break a run and may explain its speed"
            ),
            advice=(
                "export settings in the launch command so that every rank gets them (srun --export=ALL, torchrun on "
                "every node), and use one container image",
            ),
            source="awslabs/awsome-distributed-ai#1242; moe_dispatch.site agreement.yaml",
        )
    ]


def _missing_finding(missing: tuple[int, ...], world: int, heard: list[str], silent: list[str]) -> list[Finding]:
    if not missing:
        return []
    where = f"; no rank of {names(silent)} was heard" if silent else ""
    return [
        Finding(
            id="ranks-missing",
            severity=Severity.ERROR,
            message=f"{len(missing)} of {world} ranks did not report: {ranges(missing)}{where} (heard: {names(heard)})",
            why="a job that starts without them waits in its first collective until a time-out",
            advice=(
                "look at the output of those ranks: did they start, and do they reach rank 0 by the network?",
                "where ports between nodes are closed, use --rank-report on every rank and --merge",
            ),
            source="measured",
        )
    ]


def _twice_finding(members: Sequence[Member]) -> list[Finding]:
    hosts: dict[int, list[str]] = defaultdict(list)
    for member in members:
        hosts[member.rank].append(member.host)
    twice = {rank: sorted(found) for rank, found in hosts.items() if len(found) > 1}
    if not twice:
        return []
    rank, first = min(twice.items())
    return [
        Finding(
            id="rank-number-taken-twice",
            severity=Severity.ERROR,
            message=f"several processes say they are rank {ranges(sorted(twice))} (rank {rank}: {names(first)})",
            why="a process group with two ranks of one number never forms",
            advice=("give every node its own node rank; export no RANK by hand under srun",),
            source="measured",
        )
    ]
