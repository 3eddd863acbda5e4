"""The matched training A/B that accepts a decision: 50 steps for each arm, as Megatron-LM and Megatron-Bridge commands.

Protocol and what must be pinned: NVIDIA-NeMo/Megatron-Bridge@067f987d:skills/nemo-mbridge-perf-moe-dispatcher-selection
(at least 50 steps, a fixed steady window, finite loss, natural routing once for the winner); command forms of its
scripts/performance and of NVIDIA/Megatron-LM@d98e8a64:pretrain_gpt.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.configuration import DEFAULT_CORE_VERSION, Emitted, emit
from moe_dispatch.megatron.model_args import PRECISION_ARGS, model_args, parallel_args
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

ArmName = Literal["baseline", "winner", "winner-natural"]
ORDER: tuple[ArmName, ...] = ("baseline", "winner", "winner", "baseline", "winner-natural")
STEADY_STEPS = 10
_BLACKWELL = ("b200", "b300", "gb200", "gb300")


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
    sizes, notes = model_args(workload.model)
    if workload.model.num_layers % (workload.layout.pp * workload.layout.vpp):
        notes.append("the layers do not divide into the pipeline stages: add your pipeline layout to every arm")
    if workload.model.name not in _recipes():
        notes.append(
            f"Bridge's performance harness has no recipe known for {workload.model.name}: set $FAMILY and $RECIPE"
        )
    window = (steps - STEADY_STEPS + 1, steps)
    emitted_of: dict[ArmName, Emitted] = {"baseline": first, "winner": second, "winner-natural": natural}
    arms = [_arm(name, emitted, workload, site, sizes, steps) for name, emitted in emitted_of.items()]
    return AbPlan(
        arms=tuple(arms),
        order=ORDER,
        steps=steps,
        window=window,
        pinned=_PINNED,
        criteria=_criteria(first, second, steps, window, threshold),
        validation=(
            f"the winner also trains {steps} steps with natural routing and finite loss; that step time is reported on "
            "its own and not compared with forced routing",
        ),
        notes=tuple(dict.fromkeys((*notes, *first.notes, *second.notes))),
    )


_PINNED = (
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


def _arm(name: ArmName, emitted: Emitted, workload: Workload, site: Site | None, sizes: list[str], steps: int) -> Arm:
    assert emitted.emitted is not None
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": _connections(workload, site), **emitted.environment}
    exported = [f"{variable}={value}" for variable, value in environment.items()]
    return Arm(
        name=name,
        choice=emitted.emitted,
        routing="natural" if name == "winner-natural" else "forced",
        megatron_lm=_shell([*exported, *_megatron_lm(emitted, workload, site, sizes, steps)]),
        bridge=_shell(_bridge(emitted, workload, site, steps)),
        environment=environment,
    )


def _connections(workload: Workload, site: Site | None) -> str:
    """Before Blackwell, Megatron-LM demands one connection with tensor or context parallelism."""
    newer = site is not None and site.gpu in _BLACKWELL
    return "1" if (workload.layout.tp > 1 or workload.layout.cp > 1) and not newer else "32"


def _nodes(workload: Workload, site: Site | None) -> tuple[str, str]:
    """GPUs of a node and nodes, or the variables the reader sets."""
    if site is None or not site.gpus_per_node:
        return "$GPUS_PER_NODE", "$NNODES"
    return str(min(site.gpus_per_node, workload.layout.world)), str(-(-workload.layout.world // site.gpus_per_node))


def _megatron_lm(
    emitted: Emitted, workload: Workload, site: Site | None, sizes: list[str], steps: int
) -> tuple[str, ...]:
    per_node, nodes = _nodes(workload, site)
    return (
        *("torchrun", "--nproc-per-node", per_node, "--nnodes", nodes, "--node-rank", "$NODE_RANK"),
        *("--master-addr", "$MASTER_ADDR", "--master-port", "$MASTER_PORT", "pretrain_gpt.py"),
        *(sizes or ("$MODEL_ARGS",)),
        *parallel_args(workload),
        *PRECISION_ARGS[workload.precision],
        *("--moe-router-dtype", "fp32", "--moe-permute-fusion", "--mock-data", "--lr", "1e-4", "--seed", "1234"),
        *("--use-distributed-optimizer", "--eval-iters", "0", "--train-iters", str(steps)),
        *("--log-interval", "1", "--log-throughput"),
        *emitted.megatron_lm_args,
        *emitted.benchmark_only_args,
    )


def _bridge(emitted: Emitted, workload: Workload, site: Site | None, steps: int) -> tuple[str, ...]:
    layout = workload.layout
    family, recipe = _recipes().get(workload.model.name, ("$FAMILY", "$RECIPE"))
    per_node, _ = _nodes(workload, site)
    return (
        *("uv", "run", "python", "scripts/performance/setup_experiment.py"),
        *("-a", "$ACCOUNT", "-p", "$PARTITION", "-i", "$IMAGE", "--log_dir", "$LOG_DIR"),
        *("-m", family, "-mr", recipe, "--task", "pretrain", "-g", (site.gpu if site else None) or "$GPU"),
        *("-c", "bf16" if workload.precision == "bf16" else "$PRECISION"),
        *("-ng", str(layout.world), "-gn", per_node),
        *("--max_steps", str(steps), "--detach", "false", "--cuda_graph_impl", "none"),
        *("-tp", str(layout.tp), "-pp", str(layout.pp), "-cp", str(layout.cp)),
        *("-ep", str(layout.ep), "-et", str(layout.expert_tp)),
        *("-mb", str(workload.micro_batch), "-gb", str(workload.global_batch), "-sl", str(workload.seq_length)),
        *_harness_flags(emitted),
        f"model.virtual_pipeline_model_parallel_size={layout.vpp if layout.vpp > 1 else 'null'}",
        *("model.moe_shared_expert_overlap=false", "comm_overlap.overlap_moe_expert_parallel_comm=false"),
        *("comm_overlap.delay_wgrad_compute=false", "model.moe_router_dtype=fp32", "model.moe_permute_fusion=true"),
        *("rng.seed=1234", "logger.log_interval=1", "logger.log_throughput=true", "logger.filter_warnings=false"),
        *emitted.bridge_overrides,
        *emitted.benchmark_only_overrides,
    )


def _harness_flags(emitted: Emitted) -> tuple[str, ...]:
    """The flag for a dispatcher that is no flex backend.

    On a GPU that Bridge does not accept, the flag of a flex backend falls back to alltoall with a warning, while an
    override stops the run; so flex arms use overrides alone.
    """
    is_flex = "model.moe_token_dispatcher_type=flex" in emitted.bridge_overrides
    return () if is_flex else emitted.bridge_harness_flags


@cache
def _recipes() -> dict[str, tuple[str, str]]:
    import yaml

    text = resources.files("moe_dispatch.megatron").joinpath("bridge_recipes.yaml").read_text(encoding="utf-8")
    return {model: (family, recipe) for model, (family, recipe) in yaml.safe_load(text).items()}


def _shell(words: Sequence[str]) -> str:
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in words)
