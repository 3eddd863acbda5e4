"""What a person sees at the end of `select` and `compare`; the same content as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moe_dispatch.cli.output import print_json, print_table

if TYPE_CHECKING:
    from moe_dispatch.core.finding import Finding
    from moe_dispatch.decide.verdict import Verdict
    from moe_dispatch.flow.conclude import Conclusion
    from moe_dispatch.flow.plan_only import PlanOnly
    from moe_dispatch.flow.select import Followed


def show_selection(result: Conclusion | PlanOnly | Followed, as_json: bool) -> int:
    """Print the result of a `select`; returns the exit code (0: a valid verdict, or a plan)."""
    from moe_dispatch.flow.plan_only import PlanOnly
    from moe_dispatch.flow.select import Followed

    if isinstance(result, Followed):
        print_json({"followed": result.text}) if as_json else print(result.text)
        return 0
    if isinstance(result, PlanOnly):
        _show_plan(result, as_json)
        return 0
    if as_json:
        from moe_dispatch.flow.conclude import document

        print_json(document(result))
    else:
        from moe_dispatch.report.terminal import make_console, show_report

        show_report(result.data, make_console())
        print()
        for name, path in result.files.items():
            print(f"{name:<12} {path}")
        print(f"{'records':<12} {result.store}")
        recommended = result.verdict.recommended
        print(f"\nverdict: {result.verdict.kind.value}; recommended: {recommended.label if recommended else 'nothing'}")
    return 0 if result.verdict.kind.valid else 1


def show_verdict(verdict: Verdict, findings: Sequence[Finding]) -> None:
    """Print a verdict and what could not be read."""
    from moe_dispatch.report import terminal

    terminal.show_verdict(verdict, terminal.make_console(), (*verdict.findings, *findings))


def _show_plan(plan: PlanOnly, as_json: bool) -> None:
    from moe_dispatch.flow.plan_only import document

    if as_json:
        print_json(document(plan))
        return
    from moe_dispatch.flow.summary import candidate_row
    from moe_dispatch.report.terminal import candidates_table, make_console, show_findings

    console = make_console()
    console.print(f"Plan for {plan.site.summary}. Nothing was run here, and a verdict never transfers.")
    console.print(candidates_table([candidate_row(candidate) for candidate in plan.candidates], []))
    if plan.expected_rows:
        rows = [
            (name, f"{value:,.0f}", f"{value * plan.workload.row_bytes / 1e6:,.1f}")
            for name, value in plan.expected_rows.items()
        ]
        print_table(("expected, one rank, one direction", "rows", "MB"), rows)
    for name, emitted in plan.configurations.items():
        arguments = " ".join(emitted.megatron_lm_args) or "; ".join(emitted.notes)
        environment = "".join(f"{key}={value} " for key, value in emitted.environment.items())
        console.print(f"{name}: {environment}{arguments}", soft_wrap=True)
    for name, reason in plan.not_configured.items():
        console.print(f"{name}: {reason}")
    show_findings(plan.findings, console)
    console.print("\n`moe-dispatch advise` says why, with knobs, evidence and what to measure next.")
    console.print(f"To decide, run the same `select` without --site on {plan.site.nodes} x {plan.site.gpu or 'it'}.")
