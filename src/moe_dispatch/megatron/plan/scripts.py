"""The folder of a plan: scripts that run every arm inside one allocation, and a page that says what is what."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.launch_lines import shell
from moe_dispatch.megatron.plan.model import PLAN_FILE, STAGES, MatchedPlan, PlannedArm

_TEMPLATES = "templates"


def write_plan(plan: MatchedPlan, folder: Path) -> tuple[Path, ...]:
    """Write the plan, its scripts and its page; returns the files.

    Raises:
        UsageError: the folder holds something else, or cannot be written.
    """
    files = render(plan)
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / PLAN_FILE).is_file():
            raise UsageError(f"{folder} is not empty and holds no plan", "give --out a new or empty folder")
        if (folder / "logs").exists():
            raise UsageError(f"{folder} holds logs already, which are not replaced", "give --out a new folder")
        for name, (text, executable) in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if executable else 0o644)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{folder} cannot be written: {reason}", "give --out a folder that can be") from error
    return tuple(folder / name for name in files)


def render(plan: MatchedPlan) -> dict[str, tuple[str, bool]]:
    """File name -> (text, executable)."""
    files = {PLAN_FILE: (plan.model_dump_json(indent=1) + "\n", False), "README.md": (_page(plan), False)}
    files |= {f"arms/{arm.name}.sh": (_arm_script(plan, arm), True) for arm in plan.arms}
    files |= {f"stages/{stage}.txt": (_order(plan, stage), False) for stage in STAGES if plan.runs_of(stage)}
    sizes = {
        "NODES": str(plan.nodes or "${NNODES:?set it to the nodes of the allocation}"),
        "FRAMEWORK": plan.framework,
        "PER_NODE": str(plan.gpus_per_node or "${GPUS_PER_NODE:?set it to the GPUs of a node}"),
    }
    files["run.sh"] = (_filled("run.sh", sizes), True)
    files["job.sbatch"] = (_filled("job.sbatch", {**sizes, "NODES": str(plan.nodes or "NNODES")}), True)
    return files


def _arm_script(plan: MatchedPlan, arm: PlannedArm) -> str:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in arm.environment.items()]
    differs = [f"#   {entry}" for entry in arm.differs] or ["#   nothing: it is the baseline"]
    per_node = plan.gpus_per_node or "$GPUS_PER_NODE"
    nodes = plan.nodes or "$NNODES"
    launcher = (
        f"exec torchrun --nproc-per-node {per_node} --nnodes {nodes} --node-rank $NODE_RANK "
        "--master-addr $MASTER_ADDR --master-port $MASTER_PORT"
    )
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {arm.choice.label}, {arm.routing} routing, {arm.steps} steps. Started on every node by ../run.sh.",
            "# Other than in the baseline arm:",
            *differs,
            "set -euo pipefail",
            *exports,
            f'cd "${{{_home(plan)}:?set it to the checkout of {plan.framework}}}"',
            f"{launcher} \\\n  {_folded(arm)}",
            "",
        ]
    )


def _home(plan: MatchedPlan) -> str:
    return "MEGATRON_LM" if plan.framework == "megatron-lm" else "MEGATRON_BRIDGE"


def _folded(arm: PlannedArm) -> str:
    """One flag with its values a line."""
    lines: list[list[str]] = []
    for word in arm.command:
        if word.startswith("-") or "=" in word or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return " \\\n  ".join(shell(words) for words in lines)


def _order(plan: MatchedPlan, stage: str) -> str:
    rows = [f"{run.arm} {run.log}" for run in plan.runs if run.stage == stage]
    return "\n".join(rows) + "\n"


def _page(plan: MatchedPlan) -> str:
    lines = [
        f"# {plan.model} on {plan.site}: matched training A/B ({plan.framework}, Megatron-Core {plan.core_version})"
    ]
    lines += ["", "All runs of a stage belong into one allocation: another job gets other nodes.", ""]
    lines += ["    sbatch job.sbatch screen        # or ./run.sh screen on a single node"]
    lines += ["    sbatch job.sbatch decide", "    moe-dispatch compare .", ""]
    lines += ["Then `accept ARM` and `natural ARM` for the winner's name (they run it beside the baseline).", ""]
    lines += ["| stage | runs | step seconds | GPU-hours | basis |", "|---|---|---|---|---|"]
    lines += [
        f"| {c.stage} | {c.runs} | {c.step_seconds[0]:g} to {c.step_seconds[1]:g} | {c.gpu_hours[0]:g} to "
        f"{c.gpu_hours[1]:g} | {c.basis} |"
        for c in plan.costs
    ]
    lines += ["", "## Arms", ""]
    for arm in plan.arms:
        untuned = f"; untuned: {', '.join(arm.untuned)}" if arm.untuned else ""
        lines.append(f"- `{arm.name}`: {arm.choice.label}, {arm.routing} routing, {arm.steps} steps{untuned}")
        lines += [f"    - `{entry}`" for entry in arm.differs]
    for title, entries in (
        ("Left out", [f"{name}: {why}" for name, why in plan.left_out.items()]),
        ("The same in every arm", list(plan.pinned)),
        ("Accept if", list(plan.criteria)),
        ("Notes", list(plan.notes)),
    ):
        lines += ["", f"## {title}", "", *(f"- {entry}" for entry in entries or ["nothing"])]
    return "\n".join(lines) + "\n"


def _filled(name: str, values: Mapping[str, str]) -> str:
    text = resources.files("moe_dispatch.megatron.plan").joinpath(_TEMPLATES, name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
