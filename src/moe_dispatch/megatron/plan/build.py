"""From candidates to arms and runs.

Protocol: NVIDIA-NeMo/Megatron-Bridge@067f987d:skills/nemo-mbridge-perf-moe-dispatcher-selection (a short screen of SM
counts, at least 50 steps to accept, a fixed steady window, natural routing once). Every launch visits its arms
forwards, then backwards, so the baseline meets itself in each (its A-against-A repeat) and a slow drift hits all alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.choice import Choice, KnobValue
from moe_dispatch.core.errors import MoeDispatchError, UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.megatron.configuration import DEFAULT_CORE_VERSION, Emitted, emit
from moe_dispatch.megatron.inputs.read import Declared, read_config
from moe_dispatch.megatron.launch_lines import bridge_inside, environment, megatron_lm, nodes_of, training_notes
from moe_dispatch.megatron.lint import lint
from moe_dispatch.megatron.plan.cost import costs_of
from moe_dispatch.megatron.plan.model import Framework, MatchedPlan, PlannedArm, Run, Stage
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

WARM_UP_STEPS = 10
STEPS: dict[Stage, int] = {"screen": 20, "decide": 30, "accept": 60, "natural": 60}
"""Screens say little by design; deciding keeps 20 steady steps a run, accepting 50."""
_LAUNCHES: dict[Stage, int] = {"screen": 1, "decide": 5, "accept": 1, "natural": 1}
_COMPARED: tuple[Stage, ...] = ("decide", "accept", "natural")
_FORWARD_BACKWARD: tuple[Stage, ...] = ("screen", "decide", "accept")
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
_PINNED = (
    "nodes and their order (one allocation), Megatron-Core, Transformer Engine and NCCL; the container image too, "
    "unless a backend cannot share one",
    "model, parallel layout, expert tensor parallelism, batch sizes, sequence length, precision, seed, data",
    "router dtype fp32, no token drop, no capacity factor; the routing within a stage",
    "moe_shared_expert_overlap, expert-parallel overlap and delayed weight gradients off; CUDA graphs off",
    "recompute, permute fusion, CUDA_DEVICE_MAX_CONNECTIONS, SM margins of layer norms, log interval 1",
)


def matched_plan(
    baseline: Choice,
    choices: Sequence[Choice],
    specs: Mapping[str, BackendSpec],
    workload: Workload,
    site: Site,
    *,
    framework: Framework = "megatron-lm",
    core_version: str = DEFAULT_CORE_VERSION,
    launches: int = 5,
    threshold: float = 0.02,
    left_out: Mapping[str, str] | None = None,
    step_seconds: float | None = None,
    startup_seconds: float = 180.0,
) -> MatchedPlan:
    """Plan the training runs that compare `choices` with `baseline`.

    Args:
        choices: one for each backend; a knob that is set is not screened.
        launches: of the deciding stage; a winner needs five.
        left_out: backends that have no arm already, with the reason.
        step_seconds: of one training step, when known; else it is bounded from FLOPs.
        startup_seconds: of one run before its first step, for the cost.

    Raises:
        UsageError: the baseline cannot be configured here, or an argument is out of range.
    """
    if launches < 1:
        raise UsageError(f"--launches {launches} must be at least 1", "a winner needs five launches")
    refused = dict(left_out or {})
    accepted: list[Choice] = []
    writer = _Writer(specs, workload, site, framework, core_version)
    for choice in choices:
        reason = writer.refusal(choice)
        if reason:
            refused[choice.dispatcher] = reason
        else:
            accepted.append(choice)
    screened = [each for choice in accepted for each in writer.screened(choice)]
    arms = writer.arms("screen", baseline, screened) if screened else []
    arms += [arm for stage in _COMPARED for arm in writer.arms(stage, baseline, accepted)]
    runs = [run for stage in STEPS for run in _runs(stage, [arm for arm in arms if arm.stage == stage], launches)]
    per_node, nodes = nodes_of(workload, site)
    emitted_notes = [note for choice in (baseline, *accepted) for note in writer.emitted(choice, "decide").notes]
    return MatchedPlan(
        model=workload.model.name,
        site=site.name,
        framework=framework,
        core_version=core_version,
        world=workload.layout.world,
        nodes=int(nodes) if nodes.isdecimal() else None,
        gpus_per_node=int(per_node) if per_node.isdecimal() else None,
        warm_up_steps=WARM_UP_STEPS,
        threshold=threshold,
        arms=tuple(arms),
        runs=tuple(runs),
        costs=costs_of(runs, STEPS, workload, site, step_seconds, startup_seconds),
        pinned=_PINNED,
        criteria=_criteria(threshold, launches),
        left_out=refused,
        notes=tuple(dict.fromkeys((*training_notes(workload), *emitted_notes))),
    )


class _Writer:
    """Arms of one workload on one site."""

    def __init__(
        self, specs: Mapping[str, BackendSpec], workload: Workload, site: Site, framework: Framework, version: str
    ) -> None:
        self.specs, self.workload, self.site = specs, workload, site
        self.framework, self.version = framework, version

    def refusal(self, choice: Choice) -> str:
        """Why a choice gets no arm here; empty when it does. An arm that lint calls wrong would only burn GPU-hours."""
        try:
            emitted = self.emitted(choice, "decide")
        except MoeDispatchError as error:
            return error.message
        if not emitted.shipped:
            return "Megatron ships no such dispatcher, so there is no training arm for it"
        if emitted.other_workload:
            return emitted.other_workload
        arm = self._arm("decide", choice, None)
        declared = Declared(
            core_version=self.version, world_size=self.workload.layout.world, environment=arm.environment
        )
        findings = lint(read_config(arm.command, declared), self.site).findings
        return "; ".join(finding.message for finding in findings if finding.severity is Severity.ERROR)

    def emitted(self, choice: Choice, stage: Stage) -> Emitted:
        spec = self.specs[choice.dispatcher]
        forced = stage != "natural"
        return emit(choice, spec, self.workload, self.site, self.version, benchmark_routing=forced)

    def screened(self, choice: Choice) -> list[Choice]:
        """The choice with every SM count that is worth trying."""
        return [
            Choice(dispatcher=choice.dispatcher, knobs={**choice.knobs, knob: value})
            for knob, values in self._swept(choice).items()
            for value in values
        ]

    def arms(self, stage: Stage, baseline: Choice, choices: Sequence[Choice]) -> list[PlannedArm]:
        """The baseline and the others, each with what it has otherwise."""
        first = self._arm(stage, baseline, None)
        return [first, *(self._arm(stage, choice, first) for choice in choices)]

    def _swept(self, choice: Choice) -> dict[str, tuple[KnobValue, ...]]:
        spec = self.specs[choice.dispatcher]
        knob = spec.megatron.sm_knob if spec.megatron else None
        if knob is None or knob in choice.knobs or not spec.knobs[knob].sweep:
            return {}
        return {knob: spec.knobs[knob].sweep}

    def _arm(self, stage: Stage, choice: Choice, first: PlannedArm | None) -> PlannedArm:
        emitted = self.emitted(choice, stage)
        if emitted.emitted is None:
            raise UsageError(f"Megatron ships no {choice.dispatcher}", "name a baseline that it ships")
        steps = STEPS[stage]
        if self.framework == "megatron-lm":
            command = megatron_lm(emitted, self.workload, steps)
        else:
            command = bridge_inside(emitted, self.workload, self.site, steps)
        variables = environment(emitted, self.workload, self.site)
        suffix = "-".join(f"{knob}{value}" for knob, value in sorted(choice.knobs.items()))
        return PlannedArm(
            name="-".join(part for part in (stage, choice.dispatcher, suffix) if part),
            stage=stage,
            choice=choice,
            routing="natural" if stage == "natural" else "forced",
            steps=steps,
            command=command,
            environment=variables,
            differs=() if first is None else differences(first.command, command, first.environment, variables),
            untuned=tuple(self._swept(choice)) if stage != "screen" else (),
        )


def differences(
    base: Sequence[str], other: Sequence[str], base_env: Mapping[str, str], env: Mapping[str, str]
) -> tuple[str, ...]:
    """What one command has otherwise than another, one flag, override or variable an entry: `name: old -> new`."""
    left, right = {**_settings(base), **base_env}, {**_settings(other), **env}
    names = [*left, *(name for name in right if name not in left)]
    return tuple(
        f"{name}: {left.get(name, 'absent')} -> {right.get(name, 'absent')}"
        for name in names
        if left.get(name) != right.get(name)
    )


def _settings(words: Sequence[str]) -> dict[str, str]:
    """Words of a command by name: `--flag value`, `--switch`, `override=value`."""
    found: dict[str, str] = {}
    flag = ""
    for word in words:
        if _OVERRIDE.match(word):
            name, _, value = word.partition("=")
            found[name], flag = value, ""
        elif word.startswith("-"):
            flag = word
            found[flag] = "set"
        elif flag:
            found[flag] = word if found[flag] == "set" else f"{found[flag]} {word}"
    return found


def _runs(stage: Stage, arms: Sequence[PlannedArm], launches: int) -> list[Run]:
    order = [*arms, *reversed(arms)] if stage in _FORWARD_BACKWARD else list(arms)
    count = (launches if stage == "decide" else _LAUNCHES[stage]) if arms else 0
    return [
        Run(
            stage=stage,
            launch=launch,
            position=position,
            arm=arm.name,
            log=f"logs/{stage}/{launch:02d}-{position:02d}-{arm.name}.log",
        )
        for launch in range(count)
        for position, arm in enumerate(order)
    ]


def _criteria(threshold: float, launches: int) -> tuple[str, ...]:
    return (
        f"decide: the interval of the step-time ratio over {launches} launches lies beyond {threshold:.0%} and beyond "
        "the baseline's own spread",
        "accept: at least 50 steady steps of both arms, every loss and gradient norm finite, no step skipped",
        "natural: the same with the model's own routing; a flipped sign keeps the baseline",
        "every log proves the dispatcher that ran; a configured name alone is no proof",
        "peak memory of the winner leaves the head-room that training needs",
    )
