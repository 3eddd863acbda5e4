"""The configuration that follows from a verdict, for Megatron-LM and Megatron-Bridge."""

from __future__ import annotations

from collections.abc import Mapping

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.choice import Choice
from moe_dispatch.decide.verdict import Verdict
from moe_dispatch.flow.stages import BASELINE
from moe_dispatch.megatron.emit import Emitted, emit
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
    spec = specs.get(verdict.recommended.dispatcher)
    return emit(
        verdict.recommended,
        spec,
        workload,
        site,
        core_version,
        fallback=shipped_fallback(verdict, specs),
    )


def blocks(emitted: Emitted) -> tuple[ConfigBlock, ...]:
    """The emitted configuration as text to copy; each block's note says what in it is for benchmarks only."""
    marked = ", ".join(emitted.benchmark_only)
    note = f"benchmark only, remove for training: {marked}" if marked else ""
    found = [
        ConfigBlock(
            title=f"Megatron-LM arguments (Megatron-Core {emitted.core_version})",
            text="\n".join(emitted.megatron_lm_args),
            note="; ".join((*emitted.notes, *([note] if note else []))),
        ),
        ConfigBlock(title="Megatron-Bridge overrides", text="\n".join(emitted.bridge_overrides), note=note),
    ]
    if emitted.bridge_harness_flags:
        text = " ".join(emitted.bridge_harness_flags)
        found.append(ConfigBlock(title="Megatron-Bridge performance harness flags", text=text))
    if emitted.environment:
        lines = [f"export {name}={value}" for name, value in emitted.environment.items()]
        found.append(ConfigBlock(title="Environment of every rank", text="\n".join(lines)))
    return tuple(found)
