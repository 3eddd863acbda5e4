"""The configuration that follows from a verdict, for Megatron-LM and Megatron-Bridge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.choice import Choice
from moe_dispatch.decide.verdict import Verdict
from moe_dispatch.flow.stages import BASELINE
from moe_dispatch.megatron.emit import AbPlan, Emitted, ab_plan, emit
from moe_dispatch.report.data import ConfigBlock
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload


def shipped_fallback(verdict: Verdict, specs: Mapping[str, BackendSpec]) -> Choice:
    """The fastest measured arm that Megatron ships; the baseline when none was measured."""
    for arm in verdict.evidence:
        spec = specs.get(arm.choice.dispatcher)
        if spec is not None and spec.megatron is not None:
            return arm.choice
    return Choice(dispatcher=BASELINE)


def configure(
    verdict: Verdict,
    specs: Mapping[str, BackendSpec],
    workload: Workload | None,
    site: Site | None,
    core_version: str,
) -> Emitted | None:
    """Configuration of what the verdict recommends; None when it recommends nothing.

    Raises:
        UsageError: the Megatron-Core release is too old for it, or the group is impossible for it.
    """
    if verdict.recommended is None:
        return None
    spec = specs[verdict.recommended.dispatcher]
    fallback = shipped_fallback(verdict, specs)
    return emit(verdict.recommended, spec, workload, site, core_version, fallback=fallback)


def acceptance(
    verdict: Verdict, specs: Mapping[str, BackendSpec], workload: Workload, site: Site, core_version: str
) -> AbPlan | None:
    """The training A/B that would accept the recommendation; None when there is nothing to accept.

    Raises:
        UsageError: as `configure`.
    """
    if verdict.recommended is None:
        return None
    return ab_plan(
        Choice(dispatcher=BASELINE),
        verdict.recommended,
        workload,
        site,
        core_version,
        fallback=shipped_fallback(verdict, specs),
        threshold=verdict.threshold,
    )


def config_blocks(emitted: Emitted) -> tuple[ConfigBlock, ...]:
    """The emitted configuration as text to copy; what is for benchmarks only stands apart."""
    notes = "; ".join(emitted.notes)
    if emitted.emitted is None:
        return (ConfigBlock(title="Configuration", text="none", note=notes),)
    title = f"Megatron-LM arguments (Megatron-Core {emitted.core_version})"
    found = [
        ConfigBlock(title=title, text=one_flag_a_line(emitted.megatron_lm_args), note=notes),
        ConfigBlock(title="Megatron-Bridge overrides", text="\n".join(emitted.bridge_overrides)),
    ]
    if emitted.bridge_harness_flags:
        text = one_flag_a_line(emitted.bridge_harness_flags)
        found.append(ConfigBlock(title="Megatron-Bridge performance harness flags", text=text))
    if emitted.environment:
        lines = [f"export {name}={value}" for name, value in emitted.environment.items()]
        found.append(ConfigBlock(title="Environment of every rank", text="\n".join(lines)))
    forced = (*emitted.benchmark_only_args, *emitted.benchmark_only_overrides)
    if forced:
        note = "for benchmarks only: added to both arms of a comparison, never to a training run"
        found.append(ConfigBlock(title="Forced routing (benchmark only)", text="\n".join(forced), note=note))
    return tuple(found)


def plan_block(plan: AbPlan) -> ConfigBlock:
    """The training A/B as a shell file: commands, and what must hold as comments."""
    lines: list[str] = []
    for arm in plan.arms:
        title = f"# {arm.name}: {arm.choice.label}, {arm.routing} routing"
        lines += [f"{title}, Megatron-LM", arm.megatron_lm, f"{title}, Megatron-Bridge", arm.bridge, ""]
    lines += [f"# order: {', '.join(plan.order)}; steps {plan.window[0]}-{plan.window[1]} are compared"]
    lines += [f"# the same in every arm: {entry}" for entry in plan.pinned]
    lines += [f"# accept if: {entry}" for entry in plan.criteria]
    lines += [f"# then: {entry}" for entry in plan.validation]
    return ConfigBlock(
        title=f"Training A/B that would accept this ({plan.steps} steps)",
        text="\n".join(lines),
        note="; ".join(plan.notes),
    )


def one_flag_a_line(arguments: Sequence[str]) -> str:
    """Arguments with each flag and its value on a line of their own."""
    lines: list[str] = []
    for argument in arguments:
        if argument.startswith("-") or not lines:
            lines.append(argument)
        else:
            lines[-1] += f" {argument}"
    return "\n".join(lines)
