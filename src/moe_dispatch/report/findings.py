"""Findings in a terminal, and the console that everything is printed to; loads nothing but rich.

Rich leaves colours and control codes out when the output is no terminal.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from moe_dispatch.core.finding import Finding, Severity

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_ORDER = list(Severity)


def make_console(*, stderr: bool = False) -> Console:
    """A console; without a terminal it is plain text of 80 columns (or COLUMNS)."""
    return Console(stderr=stderr, highlight=False)


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Errors first; information is one line each."""
    ordered = sorted(findings, key=lambda one: _ORDER.index(one.severity))
    if ordered:
        console.print()
        console.print(Text("Findings", style="bold"))
    for one in ordered:
        style = _STYLES[one.severity]
        line = f"[{style}]{one.severity.value}[/{style}] {escape(one.message)} [dim]({escape(one.id)})[/dim]"
        console.print(Padding(line, (0, 0, 0, 2)))
        if one.severity is not Severity.INFO:
            for extra in (one.why, *(f"advice: {advice}" for advice in one.advice)):
                if extra:
                    console.print(Padding(Text(extra, style="dim"), (0, 0, 0, 4)))
