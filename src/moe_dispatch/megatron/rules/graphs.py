"""Checks on CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule

_PER_LAYER = ("local", "transformer_engine")
_LM_NAN_CHECK = "check_for_nan_in_loss_and_grad"
_BRIDGE_NAN_CHECK = "rerun_state_machine.check_for_nan_in_loss"


def _per_layer(job: Job) -> bool:
    return job.graph_impl in _PER_LAYER


def _drop_pad(job: Job) -> bool:
    factor = job.number("moe_expert_capacity_factor")
    return factor is not None and factor >= 0 and job.on("moe_pad_expert_input_to_capacity")


@rule("graph-capture-needs-static-moe")
def needs_static(job: Job) -> Iterator[Hit]:
    """The whole layer or iteration; `moe` in the list is refused by a rule of its own, DeepEP in an iteration too."""
    impl = job.graph_impl
    whole_layer = impl in _PER_LAYER and not job.graph_modules
    if not (whole_layer or impl == "full_iteration") or not job.has_experts or job.static_moe:
        return
    if impl == "full_iteration" and job.runs("deepep"):
        return
    static = "a capacity" if job.runs("alltoall", "allgather", "deepep") else "a rank capacity"
    what = "the whole iteration" if impl == "full_iteration" else "whole layers"
    yield Hit({"impl": impl, "what": what, "dispatcher": job.running, "static": static})


@rule("graph-moe-needs-drop-pad")
def moe_needs_drop_pad(job: Job) -> Iterator[Hit]:
    """The module moe."""
    if _per_layer(job) and "moe" in job.graph_modules and job.has_experts and not _drop_pad(job):
        yield Hit()


@rule("graph-moe-and-router")
def moe_and_router(job: Job) -> Iterator[Hit]:
    """One contains the other; the local implementation takes moe_preprocess for moe_router too."""
    router = {"moe_router"} | ({"moe_preprocess"} if job.graph_impl == "local" else set())
    if _per_layer(job) and "moe" in job.graph_modules and router & set(job.graph_modules):
        yield Hit()


@rule("graph-preprocess-without-router")
def preprocess_without_router(job: Job) -> Iterator[Hit]:
    """Transformer Engine's graphs only."""
    modules = job.graph_modules
    if job.graph_impl == "transformer_engine" and "moe_preprocess" in modules and "moe_router" not in modules:
        yield Hit()


@rule("graph-moe-without-experts")
def without_experts(job: Job) -> Iterator[Hit]:
    """Modules of a layer that does not exist."""
    names = [name for name in ("moe", "moe_router") if name in job.graph_modules]
    if _per_layer(job) and names and (job.number("num_moe_experts") or 0) <= 1:
        yield Hit({"modules": ", ".join(names)})


@rule("graph-mlp-in-all-moe-model")
def mlp_in_all_moe(job: Job) -> Iterator[Hit]:
    """No dense layer."""
    if not _per_layer(job) or "mlp" not in job.graph_modules or (job.number("num_moe_experts") or 0) <= 1:
        return
    frequency = job.get("moe_layer_freq")
    if frequency == 1 or (isinstance(frequency, tuple) and 0 not in frequency):
        yield Hit()


@rule("graph-preprocess-host-sync")
def preprocess_host_sync(job: Job) -> Iterator[Hit]:
    """alltoall with a capacity that does not pad, or with padding for fp8 under its old name."""
    captured = "moe_preprocess" in job.graph_modules or (
        job.graph_impl == "local" and "moe_router" in job.graph_modules
    )
    if not _per_layer(job) or not captured or job.type != "alltoall" or _drop_pad(job) or not job.has_experts:
        return
    factor = job.number("moe_expert_capacity_factor")
    if factor is not None and factor >= 0:
        yield Hit({"what": "moe_expert_capacity_factor without padding"})
    elif job.on("moe_router_padding_for_fp8"):
        yield Hit({"what": "moe_router_padding_for_fp8"})


@rule("graph-preprocess-padding-unchecked")
def preprocess_padding(job: Job) -> Iterator[Hit]:
    """The new name of that field escapes the check."""
    if not _per_layer(job) or "moe_preprocess" not in job.graph_modules or job.type != "alltoall" or _drop_pad(job):
        return
    if job.on("moe_router_padding_for_quantization") and not job.on("moe_router_padding_for_fp8"):
        yield Hit()


@rule("graph-modules-with-full-iteration")
def modules_with_full_iteration(job: Job) -> Iterator[Hit]:
    """Nothing to choose."""
    if job.graph_impl == "full_iteration" and job.graph_modules:
        yield Hit({"modules": ", ".join(job.graph_modules)})


@rule("graph-full-iteration-nan-check")
def nan_check(job: Job) -> Iterator[Hit]:
    """On by default in both frameworks."""
    if job.graph_impl != "full_iteration":
        return
    if job.config.framework == "megatron-lm":
        given = job.config.given(_LM_NAN_CHECK)
        if given is None or given.value is not False:
            yield Hit({"field": _LM_NAN_CHECK}, fix=("add --no-check-for-nan-in-loss-and-grad",))
    elif job.config.is_bridge:
        given = job.config.given(_BRIDGE_NAN_CHECK)
        if given is not None and given.value is True:
            yield Hit({"field": _BRIDGE_NAN_CHECK}, fix=(f"set {_BRIDGE_NAN_CHECK}=false",))


@rule("graph-full-recompute")
def full_recompute(job: Job) -> Iterator[Hit]:
    """Whole-iteration graphs only."""
    granularity = job.get("recompute_granularity")
    if _per_layer(job) and granularity not in (None, "selective"):
        yield Hit({"granularity": granularity, "impl": job.graph_impl})


@rule("graph-recomputed-moe")
def recomputed_moe(job: Job) -> Iterator[Hit]:
    """A captured module inside a recomputed one."""
    selective = job.get("recompute_granularity") == "selective"
    graphed = job.graph_impl == "transformer_engine" and "moe_router" in job.graph_modules
    if selective and graphed and "moe" in job.recomputed:
        yield Hit()


@rule("graph-nccl-register")
def nccl_register(job: Job) -> Iterator[Hit]:
    """Registered buffers and expandable segments."""
    if job.graph_impl != "transformer_engine":
        return
    register = job.variable("NCCL_GRAPH_REGISTER")
    if "expandable_segments:True" in (job.variable("PYTORCH_CUDA_ALLOC_CONF") or "") and register != "0":
        yield Hit({"value": register or "unset"})


@rule("graph-local-in-bridge")
def local_in_bridge(job: Job) -> Iterator[Hit]:
    """Whole iteration only."""
    if job.graph_impl == "local":
        yield Hit({"modules": ", ".join(job.graph_modules) or "of the whole layer"})


@rule("graph-impl-not-in-release")
def impl_not_in_release(job: Job) -> Iterator[Hit]:
    """The older spelling is a scope."""
    if job.get("cuda_graph_impl") == "full_iteration":
        yield Hit()
