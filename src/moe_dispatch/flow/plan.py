"""`plan`: which arms are worth a training run, as a folder that needs nothing more than to be submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import get_backend, load_backends_with_findings
from moe_dispatch.decide.guide import candidates
from moe_dispatch.flow.choices import parse_choice
from moe_dispatch.flow.stages import BASELINE
from moe_dispatch.megatron.configuration import DEFAULT_CORE_VERSION
from moe_dispatch.megatron.plan.build import matched_plan
from moe_dispatch.megatron.plan.model import Framework, MatchedPlan
from moe_dispatch.megatron.plan.scripts import write_plan
from moe_dispatch.site.gate import gate_all
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.hardware import declared_site, is_this_machine
from moe_dispatch.site.model import Site
from moe_dispatch.site.probe import probe
from moe_dispatch.workload.workload import Workload, load_workload

FRAMEWORKS: tuple[Framework, ...] = ("megatron-lm", "megatron-bridge")


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A `plan`.

    Fields:
        sizes: fields over those of the workload (`ep`, `tp`, ...); None is unset.
        site, nodes: where the job will run; None is this machine, whose gates then decide which arms there are.
        dispatchers: only these beside the baseline, `name` or `name:knob=value`; empty means all candidates.
        absent: backends known to be unusable there, `name` or `name=reason`.
        out: folder to write; None writes nothing.
    """

    workload: str
    sizes: Mapping[str, int | str | None] = field(default_factory=dict)
    site: str | None = None
    nodes: int = 1
    dispatchers: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    framework: str = "megatron-lm"
    core_version: str = DEFAULT_CORE_VERSION
    launches: int = 5
    threshold: float = 0.02
    step_seconds: float | None = None
    startup_seconds: float = 180.0
    out: str | None = None


def make_plan(request: PlanRequest) -> tuple[MatchedPlan, tuple[Path, ...]]:
    """The plan, and the files that were written.

    Raises:
        UsageError: unknown site, framework or dispatcher, impossible numbers, or a folder that cannot be written.
        WorkloadError: unknown or impossible workload.
    """
    framework = next((name for name in FRAMEWORKS if name == request.framework), None)
    if framework is None:
        raise UsageError(f"--framework {request.framework!r} is not known", f"use one of: {', '.join(FRAMEWORKS)}")
    if not 0 <= request.threshold < 1:
        raise UsageError(f"--threshold {request.threshold} must be at least 0 and below 1", "0.02 means two percent")
    here = probe(request.nodes)
    site = declared_site(request.site, request.nodes) if request.site else here
    workload = load_workload(request.workload, overrides={"world": site.ranks, **request.sizes})
    specs, _ = load_backends_with_findings()
    named = tuple(parse_choice(text) for text in request.dispatchers)
    gates = _gates(site, here, named)
    choices, left_out = _arms(workload, site, named, gates, _absent(request.absent))
    plan = matched_plan(
        Choice(dispatcher=BASELINE),
        choices,
        specs,
        workload,
        site,
        framework=framework,
        core_version=request.core_version,
        launches=request.launches,
        threshold=request.threshold,
        left_out=left_out,
        step_seconds=request.step_seconds,
        startup_seconds=request.startup_seconds,
    )
    return plan, (write_plan(plan, Path(request.out)) if request.out else ())


def _gates(site: Site, here: Site, named: Sequence[Choice]) -> dict[str, GateResult]:
    """Gates speak for this machine only."""
    if site.declared and not is_this_machine(site, here):
        return {}
    specs, _ = load_backends_with_findings()
    wanted = {choice.dispatcher for choice in named} or set(specs)
    packages = (spec for name, spec in specs.items() if name in wanted and spec.kind != "builtin")
    return gate_all(packages, site=here)


def _absent(entries: Sequence[str]) -> dict[str, str]:
    found = {}
    for entry in entries:
        name, _, reason = entry.partition("=")
        found[get_backend(name.strip()).name] = reason.strip() or "said to be unusable there"
    return found


def _arms(
    workload: Workload,
    site: Site,
    named: Sequence[Choice],
    gates: Mapping[str, GateResult],
    absent: Mapping[str, str],
) -> tuple[list[Choice], dict[str, str]]:
    """Choices that get an arm in the guide's order, and the others with their reason."""
    specs, _ = load_backends_with_findings()
    by_name = {choice.dispatcher: choice for choice in named}
    arms, left_out = [], {}
    for candidate in candidates(workload, site, specs, gates):
        name = candidate.choice.dispatcher
        refused = gates.get(name)
        if name == BASELINE:
            continue
        if name in absent:
            left_out[name] = absent[name]
        elif refused is not None and not refused.available:
            left_out[name] = f"{refused.reason}; {refused.fix}" if refused.fix else refused.reason
        elif named and name not in by_name:
            left_out[name] = "not among the dispatchers that were named"
        elif name in by_name or candidate.included:
            arms.append(by_name.get(name, candidate.choice))
        else:
            left_out[name] = candidate.reasons[-1].text if candidate.reasons else "excluded by the guide"
    return arms, left_out
