"""An examination in a terminal: the machine, what every backend reaches, how ranks differ, findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moe_dispatch.report.findings import show_findings
from moe_dispatch.site.agreement import Difference
from moe_dispatch.site.agreement_text import KINDS, holder_value, names, ranges
from moe_dispatch.site.examination import Examination
from moe_dispatch.site.gate_result import GateResult

_STATUS_STYLES = {"ok": "green", "not-installed": "dim", "missing-feature": "yellow", "broken": "red"}


def show_examination(examination: Examination, console: Console) -> None:
    """Print everything that a person acts on."""
    for line in site_lines(examination):
        console.print(Text(line), soft_wrap=True)
    if examination.hosts:
        console.print(gate_table(examination))
    else:
        console.print("\nBackends are not probed: packages here say nothing about a declared site.", soft_wrap=True)
    if examination.decision.differences:
        console.print(difference_table(examination.decision.differences))
    show_findings(examination.findings, console)
    console.print()
    console.print(Text(closing_line(examination)), soft_wrap=True)


def show_required(examination: Examination, console: Console) -> None:
    """One line for each required backend and each error: what a job's log needs."""
    usable = examination.decision.usable
    for name in examination.required:
        if name in usable:
            console.print(Text(f"{name}: {_first(examination, name)}"), soft_wrap=True)
    for finding in examination.findings:
        if finding.severity.value == "error":
            fix = f"; fix: {finding.advice[0]}" if finding.advice else ""
            console.print(Text(f"error: {finding.message}{fix} ({finding.id})"), soft_wrap=True)


def site_lines(examination: Examination) -> Iterator[str]:
    """The machine, its software and the launch, a line each."""
    site, decision = examination.site, examination.decision
    yield site.summary
    software = ", ".join(f"{name} {version}" for name, version in examination.versions.items() if version)
    if examination.fingerprint:
        yield f"software: {software}; fingerprint {examination.fingerprint}"
    gpu_driver = [f"driver {site.driver}" if site.driver else "", f"CUDA up to {site.cuda}" if site.cuda else ""]
    if any(gpu_driver):
        yield "GPU software: " + ", ".join(part for part in gpu_driver if part)
    if site.nics:
        yield "adapters: " + ", ".join(f"{nic.name} ({nic.kind})" for nic in site.nics)
    if site.container:
        yield f"container: {site.container.image or site.container.runtime}"
    if decision.world > 1:
        hosts = f"{len(decision.hosts)} host{'s' if len(decision.hosts) > 1 else ''}: {names(decision.hosts)}"
        yield f"launch: {decision.ranks} of {decision.world} ranks on {hosts}"
    for note in site.notes:
        yield f"note: {note}"


def gate_table(examination: Examination) -> Table:
    """Backend, who uses it, level, package, reason and fix; hosts only where they differ."""
    table = _table("Backends")
    many = len(examination.hosts) > 1
    table.add_column("backend", no_wrap=True)
    table.add_column("for", overflow="fold")
    table.add_column("level", no_wrap=True)
    if many:
        table.add_column("hosts", overflow="fold")
    table.add_column("reason and fix", overflow="fold", ratio=1)
    for gate, hosts in _by_outcome(examination):
        where = ["all" if len(hosts) == len(examination.hosts) else names(hosts)] if many else []
        table.add_row(
            gate.backend,
            gate.consumer,
            Text(gate.level_reached, style=_STATUS_STYLES[gate.status]),
            *where,
            Text(_why(gate)),
        )
    return table


def difference_table(differences: tuple[Difference, ...]) -> Table:
    """One row for each value of each field that is not equal on all ranks."""
    table = _table("Ranks differ")
    table.add_column("field", overflow="fold")
    table.add_column("value", overflow="fold", ratio=1)
    table.add_column("hosts", overflow="fold")
    table.add_column("ranks", overflow="fold")
    for difference in differences:
        for index, holder in enumerate(difference.holders):
            field = f"{KINDS[difference.section]} {difference.field}" if index == 0 else ""
            table.add_row(
                Text(field), Text(holder_value(difference, holder)), names(holder.hosts), ranges(holder.ranks)
            )
    return table


def closing_line(examination: Examination) -> str:
    """What can be used, or why nothing is said about it."""
    decision = examination.decision
    errors = sum(finding.severity.value == "error" for finding in decision.findings)
    problem = f"{errors} error{'s' if errors > 1 else ''}" if errors else "no error"
    if not examination.hosts:
        return f"{problem}; run the same on {examination.site.name} to see what its packages reach"
    usable = ", ".join(decision.usable) or "none"
    return f"{problem}; usable on every host: {usable}"


def _by_outcome(examination: Examination) -> list[tuple[GateResult, list[str]]]:
    """Equal outcomes of several hosts once, with the hosts."""
    hosts: dict[tuple[str, ...], list[str]] = defaultdict(list)
    first: dict[tuple[str, ...], GateResult] = {}
    for one in examination.hosts:
        for gate in one.gates:
            key = (
                gate.backend,
                gate.consumer,
                gate.level_reached,
                gate.provider or "",
                gate.version or "",
                gate.reason,
            )
            hosts[key].append(one.host)
            first.setdefault(key, gate)
    order = {name: place for place, name in enumerate(dict.fromkeys(gate.backend for gate in first.values()))}
    return sorted(((first[key], found) for key, found in hosts.items()), key=lambda row: order[row[0].backend])


def _why(gate: GateResult) -> str:
    package = " ".join(part for part in (gate.provider, gate.version) if part)
    not_run = next((level for level in gate.levels if level.state == "not-run"), None)
    lines = [package]
    if not gate.available:
        lines += [f"{gate.reason_class}: {gate.reason}", f"fix: {gate.fix}" if gate.fix else ""]
    elif not_run is not None:
        lines.append(f"{not_run.level} not run: {not_run.reason}")
    lines += [f"note: {note}" for note in gate.notes]
    return "\n".join(line for line in lines if line)


def _first(examination: Examination, backend: str) -> str:
    gate = next(gate for one in examination.hosts for gate in one.gates if gate.backend == backend)
    package = " ".join(part for part in (gate.provider, gate.version) if part)
    hosts = len(examination.hosts)
    return f"{gate.level_reached}{f' ({package})' if package else ''} on {hosts} host{'s' if hosts > 1 else ''}"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )
