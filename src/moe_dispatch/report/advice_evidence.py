"""Published evidence beside advice, in a terminal: conflicting claims, recipes, nearest pairs and steps."""

from __future__ import annotations

from rich.console import Console

from moe_dispatch.decide.advice import Advice
from moe_dispatch.decide.advice_evidence import Claims, NearRow
from moe_dispatch.report.advice_parts import bullet, heading, note


def show_evidence(advice: Advice, console: Console) -> None:
    """Print it."""
    _show_claims(advice.claims, console)
    heading(console, "Recipes in force for this model here (configuration, not measurement)")
    for row in advice.recipes:
        _show_row(row, console)
    if not advice.recipes:
        bullet(console, "none is known")
    heading(console, "Nearest published pairs (each with how it differs from this workload)")
    for row in advice.pairs:
        _show_row(row, console)
    heading(console, "Nearest published steps (stacks differ, so they compare nothing)")
    for row in advice.steps:
        _show_row(row, console)


def _show_claims(claims: Claims, console: Console) -> None:
    if not claims.conflict:
        return
    heading(console, f"Published claims for this model here conflict: {' | '.join(claims.conflict)}")
    shown: set[tuple[str, str]] = set()
    for claim in sorted(claims.claims, key=lambda one: (one.dispatcher, not one.favours)):
        key = (claim.dispatcher, claim.kind)
        if key not in shown:
            shown.add(key)
            best = claim.favours or claim.kind != "best published step"
            beside = "" if best else ", beside a better one of another dispatcher"
            bullet(console, f"{claim.dispatcher}: {claim.kind}{beside}: {claim.statement} ({claim.date or 'undated'})")


def _show_row(row: NearRow, console: Console) -> None:
    labels = f" [{', '.join(row.labels)}]" if row.labels else ""
    bullet(console, f"{row.statement}{labels}")
    note(console, f"differs in {'; '.join(row.differences) or 'nothing that is known'}", 5)
    for finding in row.findings:
        note(console, f"does not fit: {finding}", 5)
    note(console, f"{row.id}: {row.source}", 5, wrap=False)
