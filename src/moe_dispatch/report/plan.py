"""A matched plan on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moe_dispatch.megatron.plan.model import STAGES, MatchedPlan, PlannedArm
from moe_dispatch.report.terminal import make_console


def show_plan(plan: MatchedPlan, files: Sequence[Path]) -> None:
    """Arms by stage with what they have otherwise, the cost, what is left out, and what to do next."""
    console = make_console()
    where = f"{plan.nodes} x {plan.gpus_per_node} GPUs" if plan.nodes else f"{plan.world} GPUs"
    console.print(
        Text(
            f"{plan.model} on {plan.site}: {where}, one allocation, {plan.framework}, Megatron-Core {plan.core_version}"
        )
    )
    costs = {cost.stage: cost for cost in plan.costs}
    for stage in STAGES:
        arms = plan.arms_of(stage)
        if arms:
            cost = costs[stage]
            one = ", the baseline and one winner" if stage in ("accept", "natural") else ""
            console.print(
                Text(
                    f"\n{stage}: {cost.runs} runs of {arms[0].steps} steps{one}, {arms[0].routing} routing, "
                    f"{cost.gpu_hours[0]:g} to {cost.gpu_hours[1]:g} GPU-hours"
                )
            )
            _show_arms(arms, console, in_full=stage == "decide")
    console.print(Text(f"\ncost: {plan.costs[0].basis}"))
    for title, entries in (
        ("left out", [f"{name}: {why}" for name, why in plan.left_out.items()]),
        ("accept if", list(plan.criteria)),
        ("note", list(plan.notes)),
    ):
        for entry in entries:
            console.print(Text(f"{title}: {entry}"))
    if files:
        folder = files[0].parent
        console.print(
            Text(f"\nwritten to {folder}; there: sbatch job.sbatch decide; then: moe-dispatch compare {folder}")
        )
    else:
        console.print(Text("\nnothing was written; give --out DIR for the scripts"))


def _show_arms(arms: Sequence[PlannedArm], console: Console, *, in_full: bool) -> None:
    """Names, and for the deciding stage all that an arm has otherwise than the baseline's."""
    if not in_full:
        console.print(Text("  " + ", ".join(arm.choice.label for arm in arms)))
        return
    table = Table(box=None)
    table.add_column("arm")
    table.add_column("otherwise than the baseline arm, and nothing else")
    for arm in arms:
        untuned = [f"untuned: {', '.join(arm.untuned)}"] if arm.untuned else []
        table.add_row(Text(arm.choice.label), Text("\n".join([*arm.differs, *untuned]) or "(baseline)"))
    console.print(table)
