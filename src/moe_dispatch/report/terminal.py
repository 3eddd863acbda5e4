"""The verdict and its evidence in a terminal: the claim on top, then arms, what was not ranked, contract, findings.

Everything fits 80 columns. Rich leaves colours and control codes out when the output is no terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from moe_dispatch.core.finding import Finding
from moe_dispatch.decide.contract_table import DifferenceClass
from moe_dispatch.decide.verdict import Verdict, VerdictKind
from moe_dispatch.report import findings as findings_only
from moe_dispatch.report import text
from moe_dispatch.report.data import CandidateRow, ConfigBlock, GateRow, ReportData, TrafficRow
from moe_dispatch.report.findings import make_console as make_console

_STYLES = {
    VerdictKind.WINNER: "green",
    VerdictKind.TIE: "cyan",
    VerdictKind.ONLY_AVAILABLE: "yellow",
    VerdictKind.INCONCLUSIVE: "yellow",
    VerdictKind.NOT_COMPARABLE: "red",
}
_CLASS_STYLES = {
    DifferenceClass.CONFOUNDER: "red",
    DifferenceClass.DISPATCHER_COUPLED: "cyan",
    DifferenceClass.HARMLESS: "dim",
    DifferenceClass.CONTROLLED: "cyan",
}
_UNKNOWN_HELP = "record it, or vouch for it with --attest FIELD or --attest GROUP"
_LABEL_WIDTH = 14
_IN_TABLE = "-is-not-slow"


def show_report(data: ReportData, console: Console) -> None:
    """Print everything but raw samples."""
    show_verdict(data.verdict, console, data.all_findings)
    if data.candidates or data.gates:
        console.print(candidates_table(data.candidates, data.gates))
    if data.traffic:
        console.print(traffic_table(data.traffic))
    for block in data.config:
        show_config(block, console)


def show_verdict(verdict: Verdict, console: Console, findings: Iterable[Finding] | None = None) -> None:
    """Print the verdict with its evidence."""
    console.print(verdict_panel(verdict))
    if verdict.evidence:
        console.print(arms_table(verdict))
    if verdict.not_ranked:
        console.print(not_ranked_table(verdict))
    console.print(contract_table(verdict))
    show_findings(verdict.findings if findings is None else findings, console)
    if verdict.would_change:
        _heading(console, "What would change it")
        for change in verdict.would_change:
            _bullet(console, change)


def verdict_panel(verdict: Verdict) -> Panel:
    """Kind, claim, recommendation and margin."""
    lines = [Text(verdict.statement)]
    recommended = verdict.recommended.label if verdict.recommended else "none"
    lines.append(Text(f"Recommended: {recommended}", style="bold"))
    noise = verdict.noise_floor
    floor = f"{noise.relative:.1%} noise floor" if noise else "noise floor unknown"
    lines.append(Text(f"Margin {verdict.margin:.1%} ({floor}, {verdict.threshold:.1%} threshold)", style="dim"))
    lines += [
        Text(
            f"Skew {one.routing}: {one.interval.ratio:.3f} of the time with {one.against}"
            + (" - the sign flips" if one.flipped else ""),
            style="dim",
        )
        for one in verdict.skew
    ]
    winner = f": {verdict.winner.label}" if verdict.winner else ""
    title = Text(f" {text.KIND_TITLES[verdict.kind]}{winner} ", style="bold")
    return Panel(Text("\n").join(lines), title=title, title_align="left", border_style=_STYLES[verdict.kind])


def arms_table(verdict: Verdict) -> Table:
    """Compared arms, fastest first."""
    table = _table("Arms")
    table.add_column("dispatcher", overflow="fold", min_width=_LABEL_WIDTH)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("ratio (95 % interval)", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("standing", no_wrap=True)
    for arm in verdict.evidence:
        pareto = "*" if arm.choice.label in verdict.pareto else ""
        table.add_row(
            _label(arm.choice.label),
            text.duration(arm.median_us),
            text.ratio(arm.ratio),
            text.size(arm.memory_bytes) if arm.memory_bytes is not None else "-",
            f"{arm.launches}x{arm.iterations // max(arm.launches, 1)}",
            f"{arm.standing}{pareto}",
            style="bold" if arm.standing == "fastest" else "",
        )
    table.caption = "runs: launches x iterations.  *: no other arm beats it in both time and memory."
    table.caption_justify = "left"
    return table


def not_ranked_table(verdict: Verdict) -> Table:
    """Attempts without timing; none of them is slow."""
    table = _table("Not ranked (no valid timing; this says nothing about speed)")
    table.add_column("dispatcher", overflow="fold", min_width=12)
    table.add_column("status", no_wrap=True)
    table.add_column("reason and fix", overflow="fold", ratio=1)
    for one in verdict.not_ranked:
        fix = f"\n[dim]fix: {escape(one.fix)}[/dim]" if one.fix else ""
        table.add_row(
            _label(one.choice.label), f"{one.status.value}\n[dim]{escape(one.stage)}[/dim]", escape(one.reason) + fix
        )
    return table


def contract_table(verdict: Verdict) -> Table:
    """Fields that decide whether the arms may be compared at all; equal ones are counted only."""
    contract = verdict.contract
    table = _table("Contract")
    table.add_column("field", overflow="fold")
    table.add_column("state", overflow="fold", min_width=10)
    table.add_column("values", overflow="fold", ratio=1)
    for one in (*contract.different, *contract.disclosed):
        state = f"[{_CLASS_STYLES[one.kind]}]{text.CLASS_TITLES[one.kind]}[/]\n[dim]{one.group}[/dim]"
        values = "\n".join(f"{value}: {', '.join(arms)}" for value, arms in one.arms_of_value.items())
        table.add_row(escape(one.field), state, escape(values))
    for group, names in text.by_group(contract.unknown).items():
        table.add_row(escape("\n".join(names)), f"[yellow]unknown[/yellow]\n[dim]{group}[/dim]", _UNKNOWN_HELP)
    for name in contract.attested:
        table.add_row(escape(name), "attested", "taken as equal on your word")
    table.add_row(f"{len(contract.equal)} fields", "equal", escape(_summary(verdict)))
    return table


def candidates_table(candidates: Sequence[CandidateRow], gates: Sequence[GateRow]) -> Table:
    """Candidates in the order of the guide, with the gate's answer."""
    by_name = {gate.backend: gate for gate in gates}
    table = _table("Candidates and gate")
    table.add_column("dispatcher", overflow="fold", min_width=12)
    table.add_column("gate", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    named = {candidate.dispatcher for candidate in candidates}
    rows = [*sorted(candidates, key=lambda one: one.position)]
    rows += [CandidateRow(dispatcher=name, position=len(rows), included=False) for name in by_name if name not in named]
    for row in rows:
        gate = by_name.get(row.dispatcher)
        state = "-" if gate is None else f"[green]{escape(gate.level)}[/green]" if gate.available else "[red]no[/red]"
        reasons = list(row.reasons)
        if gate is not None and not gate.available:
            reasons += [gate.reason, f"fix: {gate.fix}" if gate.fix else ""]
        why = escape("\n".join(reason for reason in reasons if reason))
        table.add_row(escape(row.dispatcher), state, "yes" if row.included else "no", why)
    return table


def traffic_table(rows: Sequence[TrafficRow]) -> Table:
    """Row and byte counts of one direction, all ranks together."""
    table = _table("Traffic, one direction, all ranks")
    table.add_column("routing", overflow="fold")
    table.add_column("rows counted", no_wrap=True)
    table.add_column("expected", justify="right", no_wrap=True)
    table.add_column("counted", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    previous = ""
    for row in rows:
        table.add_row(
            escape(row.routing) if row.routing != previous else "",
            row.name,
            "-" if row.expected is None else f"{row.expected:,.0f}",
            "-" if row.counted is None else f"{row.counted:,}",
            text.size(row.row_bytes * (row.counted if row.counted is not None else row.expected or 0)),
        )
        previous = row.routing
    return table


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Errors first; information is one line each; what the table of unranked arms shows is not repeated."""
    findings_only.show_findings((one for one in findings if not one.id.endswith(_IN_TABLE)), console)


def show_config(block: ConfigBlock, console: Console) -> None:
    """Text to copy, unwrapped."""
    _heading(console, block.title)
    if block.note:
        console.print(Padding(Text(block.note, style="dim"), (0, 0, 0, 2)))
    console.print(Text(block.text), soft_wrap=True)


def _summary(verdict: Verdict) -> str:
    return ", ".join(f"{name} {text.value(value)}" for name, value in verdict.measured_on.items() if value)


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _bullet(console: Console, line: str) -> None:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(" -", Text(line))
    console.print(grid)


def _label(label: str) -> str:
    """Knobs on a line of their own where they would be cut."""
    return escape(label.replace("(", "\n(", 1) if len(label) > _LABEL_WIDTH else label)
