"""The command lines that train with one emitted configuration, for Megatron-LM and Megatron-Bridge.

Command forms: NVIDIA/Megatron-LM@d98e8a64:pretrain_gpt.py and NVIDIA-NeMo/Megatron-Bridge@067f987d:scripts/performance
(`setup_experiment.py` submits a job of its own; `bootstrap.py` runs inside an allocation, `env_vars` installed first).
Words that start with `$` are for the reader's shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from importlib import resources

from moe_dispatch.megatron.configuration import Emitted
from moe_dispatch.megatron.model_args import PRECISION_ARGS, model_args, parallel_args
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

_BLACKWELL = ("b200", "b300", "gb200", "gb300")


def environment(emitted: Emitted, workload: Workload, site: Site | None) -> dict[str, str]:
    """Variables of the processes. Before Blackwell, Megatron-LM demands one connection with tensor or context
    parallelism.
    """
    newer = site is not None and site.gpu in _BLACKWELL
    one = (workload.layout.tp > 1 or workload.layout.cp > 1) and not newer
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1" if one else "32", **emitted.environment}


def nodes_of(workload: Workload, site: Site | None) -> tuple[str, str]:
    """GPUs of a node and nodes, or the variables the reader sets."""
    if site is None or not site.gpus_per_node:
        return "$GPUS_PER_NODE", "$NNODES"
    return str(min(site.gpus_per_node, workload.layout.world)), str(-(-workload.layout.world // site.gpus_per_node))


def torchrun(workload: Workload, site: Site | None) -> tuple[str, ...]:
    """The launcher of one node."""
    per_node, nodes = nodes_of(workload, site)
    return (
        *("torchrun", "--nproc-per-node", per_node, "--nnodes", nodes, "--node-rank", "$NODE_RANK"),
        *("--master-addr", "$MASTER_ADDR", "--master-port", "$MASTER_PORT"),
    )


def megatron_lm(emitted: Emitted, workload: Workload, steps: int) -> tuple[str, ...]:
    """The script and its arguments."""
    sizes, _ = model_args(workload.model)
    return (
        "pretrain_gpt.py",
        *(sizes or ("$MODEL_ARGS",)),
        *parallel_args(workload),
        *PRECISION_ARGS[workload.precision],
        *("--moe-router-dtype", "fp32", "--moe-permute-fusion", "--mock-data", "--lr", "1e-4", "--seed", "1234"),
        *("--use-distributed-optimizer", "--eval-iters", "0", "--train-iters", str(steps)),
        *("--log-interval", "1", "--log-throughput"),
        *emitted.megatron_lm_args,
        *emitted.benchmark_only_args,
    )


def bridge_submission(emitted: Emitted, workload: Workload, site: Site | None, steps: int) -> tuple[str, ...]:
    """One job of its own on a Slurm cluster."""
    return (
        *("uv", "run", "python", "scripts/performance/setup_experiment.py"),
        *("-a", "$ACCOUNT", "-p", "$PARTITION", "-i", "$IMAGE", "--log_dir", "$LOG_DIR"),
        *("--detach", "false"),
        *_bridge(emitted, workload, site, steps),
    )


def bridge_inside(emitted: Emitted, workload: Workload, site: Site | None, steps: int) -> tuple[str, ...]:
    """The script and its arguments inside an allocation, under `torchrun`."""
    return ("scripts/performance/bootstrap.py", *_bridge(emitted, workload, site, steps))


def _bridge(emitted: Emitted, workload: Workload, site: Site | None, steps: int) -> tuple[str, ...]:
    layout = workload.layout
    family, recipe = recipes().get(workload.model.name, ("$FAMILY", "$RECIPE"))
    per_node, _ = nodes_of(workload, site)
    return (
        *("-m", family, "-mr", recipe, "--task", "pretrain", "-g", (site.gpu if site else None) or "$GPU"),
        *("-c", "bf16" if workload.precision == "bf16" else "$PRECISION"),
        *("-ng", str(layout.world), "-gn", per_node),
        *("--max_steps", str(steps), "--cuda_graph_impl", "none"),
        *("-tp", str(layout.tp), "-pp", str(layout.pp), "-cp", str(layout.cp)),
        *("-ep", str(layout.ep), "-et", str(layout.expert_tp)),
        *("-mb", str(workload.micro_batch), "-gb", str(workload.global_batch), "-sl", str(workload.seq_length)),
        *_harness_flags(emitted),
        f"model.virtual_pipeline_model_parallel_size={layout.vpp if layout.vpp > 1 else 'null'}",
        *("model.moe_shared_expert_overlap=false", "comm_overlap.overlap_moe_expert_parallel_comm=false"),
        *("comm_overlap.delay_wgrad_compute=false", "model.delay_wgrad_compute=false"),
        f"model.sequence_parallel={'true' if layout.uses_sequence_parallel else 'false'}",
        *("model.moe_router_dtype=fp32", "model.moe_permute_fusion=true"),
        *("rng.seed=1234", "logger.log_interval=1", "logger.log_throughput=true", "logger.filter_warnings=false"),
        *emitted.bridge_overrides,
        *(
            f"env_vars.{name}={value}"
            for name, value in environment(emitted, workload, site).items()
            if name not in emitted.environment
        ),
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
def recipes() -> dict[str, tuple[str, str]]:
    """Catalogue model -> (family, recipe) of Bridge's performance harness."""
    import yaml

    text = resources.files("moe_dispatch.megatron").joinpath("bridge_recipes.yaml").read_text(encoding="utf-8")
    return {model: (family, recipe) for model, (family, recipe) in yaml.safe_load(text).items()}


def training_notes(workload: Workload) -> list[str]:
    """What the lines above leave to the reader."""
    _, notes = model_args(workload.model)
    if workload.model.num_layers % (workload.layout.pp * workload.layout.vpp):
        notes.append("the layers do not divide into the pipeline stages: add your pipeline layout to every arm")
    if workload.model.name not in recipes():
        notes.append(
            f"Bridge's performance harness has no recipe known for {workload.model.name}: set $FAMILY and $RECIPE"
        )
    return notes


def shell(words: Sequence[str]) -> str:
    """One line of shell; words that start with `$` are left for the shell to fill in."""
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in words)
