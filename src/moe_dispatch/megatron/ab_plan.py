"""The matched training A/B that accepts a decision: 50 steps for each arm, as Megatron-LM and Megatron-Bridge commands.

Protocol and what must be pinned: NVIDIA-NeMo/Megatron-Bridge@067f987d:skills/nemo-mbridge-perf-moe-dispatcher-selection
(at least 50 steps, a fixed steady window, finite loss, natural routing once for the winner); command forms of its
scripts/performance and of NVIDIA/Megatron-LM@d98e8a64:pretrain_gpt.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.configuration import DEFAULT_CORE_VERSION, Emitted, emit
from moe_dispatch.megatron.launch_lines import (
    bridge_submission,
    environment,
    megatron_lm,
    shell,
    torchrun,
    training_notes,
)
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

ArmName = Literal["baseline", "winner", "winner-natural"]
ORDER: tuple[ArmName, ...] = ("baseline", "winner", "winner", "baseline", "winner-natural")
STEADY_STEPS = 10


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(_Data):
    """One configuration to train with.

    Fields:
        routing: `forced` repeats the measured routing (benchmark-only), `natural` trains the router.
        megatron_lm, bridge: lines of shell; `$NAMES` in them are for the reader to set.
        environment: what the Megatron-LM line sets; the Bridge line carries its own.
    """

    name: ArmName
    choice: Choice
    routing: Literal["forced", "natural"]
    megatron_lm: str
    bridge: str
    environment: dict[str, str] = Field(default_factory=dict)


class AbPlan(_Data):
    """The whole experiment.

    Fields:
        order: of the runs; both compared arms run twice, so that the baseline's own spread is known.
        window: first and last step whose times count, included.
        pinned: what is the same in every arm, by construction or to be kept so.
        criteria: all must hold before the winner replaces the baseline.
        validation: what the winner must pass then.
    """

    arms: tuple[Arm, ...]
    order: tuple[ArmName, ...]
    steps: int
    window: tuple[int, int]
    pinned: tuple[str, ...]
    criteria: tuple[str, ...]
    validation: tuple[str, ...]
    notes: tuple[str, ...] = ()


def ab_plan(
    baseline: Choice,
    winner: Choice,
    workload: Workload,
    site: Site | None = None,
    core_version: str = DEFAULT_CORE_VERSION,
    fallback: Choice | None = None,
    steps: int = 50,
    threshold: float = 0.02,
) -> AbPlan | None:
    """Plan the training runs that would accept `winner` over `baseline`.

    Args:
        fallback: stands in for a winner that Megatron does not ship.
        steps: optimizer steps of each run; the last ten are timed.
        threshold: relative difference in step time below which the baseline stays.

    Returns:
        None when there is nothing to accept: both arms would be the same Megatron configuration, or Megatron ships
        no such baseline, or neither the winner nor a fallback.

    Raises:
        UsageError: fewer than 20 steps, or a dispatcher that this release or layout cannot run.
        UnsupportedByBackend: Megatron ships no such fallback.
    """
    if steps < 2 * STEADY_STEPS:
        raise UsageError(f"steps={steps} leaves no warm-up before the last {STEADY_STEPS}", "use 50 steps")
    first = emit(baseline, None, workload, site, core_version)
    second = emit(winner, None, workload, site, core_version, fallback=fallback)
    if None in (first.emitted, second.emitted) or first.megatron_lm_args == second.megatron_lm_args:
        return None
    natural = emit(winner, None, workload, site, core_version, benchmark_routing=False, fallback=fallback)
    window = (steps - STEADY_STEPS + 1, steps)
    emitted_of: dict[ArmName, Emitted] = {"baseline": first, "winner": second, "winner-natural": natural}
    arms = [_arm(name, emitted, workload, site, steps) for name, emitted in emitted_of.items()]
    return AbPlan(
        arms=tuple(arms),
        order=ORDER,
        steps=steps,
        window=window,
        pinned=PINNED,
        criteria=_criteria(first, second, steps, window, threshold),
        validation=(
            f"the winner also trains {steps} steps with natural routing and finite loss; that step time is reported on "
            "its own and not compared with forced routing",
        ),
        notes=tuple(dict.fromkeys((*training_notes(workload), *first.notes, *second.notes))),
    )


PINNED = (
    "nodes and their order, container image, Megatron-Core, Transformer Engine, NCCL and backend commits",
    "model, parallel layout, expert tensor parallelism, batch sizes, sequence length, seed, data",
    "router dtype fp32, forced routing (in the timed arms), no token drop, no capacity factor",
    "moe_shared_expert_overlap, expert-parallel overlap and delayed weight gradients off; CUDA graphs off",
    "recompute, permute fusion, CUDA_DEVICE_MAX_CONNECTIONS, SM margins of layer norms, log interval 1",
)


def _criteria(
    baseline: Emitted, winner: Emitted, steps: int, window: tuple[int, int], threshold: float
) -> tuple[str, ...]:
    names = " and ".join(one.emitted.dispatcher for one in (baseline, winner) if one.emitted is not None)
    return (
        f"every run prints all {steps} iterations; a shorter log has no step time",
        "every iteration prints a finite loss and gradient norm, and none is skipped or counted as NaN",
        f"the logs show {names} in the effective configuration, no 'Falling back to alltoall' and no import failure; a "
        "configured name alone is no proof",
        f"mean step time over steps {window[0]}-{window[1]}: every winner run is at least {threshold:.0%} faster than "
        "every baseline run, and by more than the two baseline runs differ",
        "peak memory of every run is reported, and the winner's leaves the head-room that training needs",
    )


def _arm(name: ArmName, emitted: Emitted, workload: Workload, site: Site | None, steps: int) -> Arm:
    assert emitted.emitted is not None
    variables = environment(emitted, workload, site)
    exported = [f"{variable}={value}" for variable, value in variables.items()]
    return Arm(
        name=name,
        choice=emitted.emitted,
        routing="natural" if name == "winner-natural" else "forced",
        megatron_lm=shell([*exported, *torchrun(workload, site), *megatron_lm(emitted, workload, steps)]),
        bridge=shell(bridge_submission(emitted, workload, site, steps)),
        environment=variables,
    )
