"""Checks on the overlap of expert-parallel communication."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.resolution import FLEX
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_DELAY = "delay_wgrad_compute"
_BACKWARD = "overlap_dispatch_backward_with_experts_wgrad"


@rule("overlap-needs-ep")
def needs_ep(job: Job) -> Iterator[Hit]:
    """Nothing to overlap."""
    if job.overlap and job.ep == 1:
        yield Hit()


@rule("overlap-with-allgather")
def with_allgather(job: Job) -> Iterator[Hit]:
    """alltoall and flex only."""
    if job.overlap and job.type not in ("alltoall", FLEX):
        yield Hit({"type": job.type})


@rule("overlap-needs-vpp-when-pp")
def needs_vpp(job: Job) -> Iterator[Hit]:
    """An interleaved schedule provides the other micro-batch."""
    if job.overlap and job.pp > 1 and not job.has_virtual_stages:
        yield Hit({"pp": job.pp})


@rule("overlap-vs-shared-expert-overlap")
def vs_shared(job: Job) -> Iterator[Hit]:
    """Bridge has switched the shared overlap off where it applied a flex backend."""
    if job.overlap and job.on("moe_shared_expert_overlap"):
        yield Hit({"origin": job.given("moe_shared_expert_overlap")})


@rule("overlap-vs-full-recompute")
def vs_full_recompute(job: Job) -> Iterator[Hit]:
    """Granularity, method and number of layers are checked one by one."""
    if not job.overlap:
        return
    if job.get("recompute_granularity") == "full":
        yield Hit({"what": "recompute_granularity=full"})
        return
    for name in ("recompute_method", "recompute_num_layers"):
        if job.get(name) is not None:
            yield Hit({"what": f"{name}={job.get(name)}"})


@rule("overlap-vs-moe-in-recompute-modules")
def vs_recomputed_moe(job: Job) -> Iterator[Hit]:
    """Looked at whatever the granularity."""
    if job.overlap and "moe" in job.recomputed:
        yield Hit()


@rule("overlap-needs-half-precision")
def needs_half(job: Job) -> Iterator[Hit]:
    """bf16 or fp16."""
    if job.overlap and not job.on("bf16") and not job.on("fp16"):
        yield Hit()


@rule("overlap-mtp-needs-pipeline")
def mtp_needs_pipeline(job: Job) -> Iterator[Hit]:
    """Older releases."""
    if job.overlap and job.number("mtp_num_layers") == 1 and job.pp == 1:
        yield Hit()


@rule("overlap-with-several-mtp-layers")
def several_mtp(job: Job) -> Iterator[Hit]:
    """At most one."""
    layers = job.number("mtp_num_layers")
    if job.overlap and layers is not None and layers > 1:
        yield Hit({"layers": layers})


@rule("overlap-vs-graphed-moe")
def vs_graphs(job: Job) -> Iterator[Hit]:
    """Transformer Engine's graphs over the pieces."""
    if not job.overlap or job.graph_impl == "none":
        return
    captured = [name for name in ("moe", "mlp") if name in job.graph_modules]
    if job.graph_impl == "transformer_engine":
        if captured:
            yield Hit({"modules": f"{', '.join(captured)} in cuda_graph_modules"})
    elif job.core < (0, 18):
        yield Hit({"modules": f"cuda_graph_impl={job.graph_impl}"})


@rule("overlap-ncclep-offload")
def ncclep_offload(job: Job) -> Iterator[Hit]:
    """The overlap frees what would be offloaded."""
    offloads = job.on("fine_grained_activation_offloading") and "expert_fc1" in job.words("offload_modules")
    if job.overlap and offloads and job.type == FLEX and job.backend == "ncclep":
        yield Hit()


@rule("overlap-needs-torch")
def needs_torch(job: Job) -> Iterator[Hit]:
    """A hang of older releases."""
    if job.overlap and job.package_below("torch", "2.6"):
        yield Hit({"have": job.packages["torch"]})


@rule("delay-wgrad-needs-overlap")
def delay_needs_overlap(job: Job) -> Iterator[Hit]:
    """Nothing uses the delayed gradients otherwise."""
    if job.overlap_setting(_DELAY) and not job.overlap:
        yield Hit()


@rule("delay-wgrad-needs-te-layers")
def delay_needs_te(job: Job) -> Iterator[Hit]:
    """Megatron-LM's own check."""
    if job.overlap_setting(_DELAY) and job.get("transformer_impl") != "transformer_engine":
        yield Hit({"impl": job.get("transformer_impl")})


@rule("dispatch-backward-overlap-exclusive")
def backward_exclusive(job: Job) -> Iterator[Hit]:
    """One way of overlapping."""
    if not job.on(_BACKWARD):
        return
    if job.overlap:
        yield Hit({"other": "overlap_moe_expert_parallel_comm"})
    elif job.overlap_setting(_DELAY):
        yield Hit({"other": _DELAY})


@rule("early-release-needs-overlap")
def early_release(job: Job) -> Iterator[Hit]:
    """Part of the overlap."""
    if job.on("ep_overlap_early_attn_memory_release") and not job.overlap:
        yield Hit()


@rule("max-connections-1-hides-overlap")
def one_connection(job: Job) -> Iterator[Hit]:
    """Before Blackwell, where one queue is also what tensor parallelism asks for."""
    if not job.overlap or job.variable(_CONNECTIONS) != "1":
        return
    if float(job.gpu.capability.removeprefix("gfx")) >= 10:
        return
    parallel = [name for name, size in (("TP", job.tp), ("CP", job.cp)) if size > 1]
    fix = f"set {_CONNECTIONS}=32 in the launcher; nothing here needs 1 (TP and CP are 1)"
    tensor = ""
    if parallel:
        names = " and ".join(parallel)
        tensor = f" The overlap of {names} communication on this GPU may require 1, so it is a trade-off."
        fix = f"measure {_CONNECTIONS} at 1 and at 32; with {names} > 1 neither is right for both overlaps"
    yield Hit({"gpu": job.gpu.name.upper(), "tensor": tensor}, fix=(fix,))
