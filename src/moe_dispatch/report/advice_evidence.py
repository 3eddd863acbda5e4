"""Published evidence beside advice, in a terminal: conflicting claims, recipes, nearest pairs and steps."""

from __future__ import annotations

from moe_dispatch.decide.advice import Advice
from moe_dispatch.decide.advice_evidence import Claims, NearRow
from moe_dispatch.report.advice_parts import Page


def show_evidence(advice: Advice, page: Page) -> None:
    """Print it."""
    _show_claims(advice.claims, page)
    page.heading("Recipes in force for this model here (configuration, not measurement)")
    for row in advice.recipes:
        _show_row(row, page)
    if not advice.recipes:
        page.bullet("none is known")
    page.heading("Nearest published pairs (each with how it differs from this workload)")
    for row in advice.pairs:
        _show_row(row, page)
    if advice.knobs:
        page.heading("Nearest published settings of one knob")
    for row in advice.knobs:
        _show_row(row, page)
    page.heading("Nearest published steps (stacks differ, so they compare nothing)")
    for row in advice.steps:
        _show_row(row, page)


def _show_claims(claims: Claims, page: Page) -> None:
    if not claims.conflict:
        return
    page.heading(f"Published claims for this model here conflict: {' | '.join(claims.conflict)}")
    shown: set[tuple[str, str]] = set()
    for claim in sorted(claims.claims, key=lambda one: (one.dispatcher, not one.favours)):
        key = (claim.dispatcher, claim.kind)
        if key not in shown:
            shown.add(key)
            best = claim.favours or claim.kind != "best published step"
            beside = "" if best else ", beside a better one of another dispatcher"
            page.bullet(f"{claim.dispatcher}: {claim.kind}{beside}: {claim.statement} ({claim.date or 'undated'})")


def _show_row(row: NearRow, page: Page) -> None:
    labels = f" [{', '.join(row.labels)}]" if row.labels else ""
    page.bullet(f"{row.statement}{labels}")
    page.note(f"differs in {'; '.join(row.differences) or 'nothing that is known'}", 5)
    for finding in row.findings:
        page.note(f"does not fit: {finding}", 5)
    page.note(f"{row.id}: {row.source}", 5, wrap=False)
