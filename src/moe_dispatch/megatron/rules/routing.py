"""Checks on router, capacity and token dropping."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.resolution import FLEX
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule

MANY_EXPERTS = 32
_DTYPES = (None, "fp32", "fp64")
_AUX_LOSSES = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}
_STASHED = {"expert_fc1", "moe_act", "fused_group_mlp"}


@rule("router-dtype-unset")
def router_dtype_unset(job: Job) -> Iterator[Hit]:
    """From 32 experts on; DeepEP and HybridEP have a rule of their own."""
    if job.runs("deepep", "hybridep") or job.get("moe_router_dtype") is not None:
        return
    experts = job.number("num_moe_experts")
    if experts is not None and experts >= MANY_EXPERTS:
        yield Hit({"experts": experts})


@rule("flex-probs-not-float32")
def flex_probs(job: Job) -> Iterator[Hit]:
    """The weights must be float32 where tokens are dispatched."""
    dtype = job.get("moe_router_dtype")
    if job.runs("deepep", "hybridep") and dtype != "fp32":
        yield Hit({"backend": job.running, "dtype": dtype or "not set"})


@rule("router-dtype-not-a-name")
def router_dtype_name(job: Job) -> Iterator[Hit]:
    """Anything but the names that the router compares with."""
    value = job.get("moe_router_dtype")
    if value not in _DTYPES:
        yield Hit({"value": value, "origin": job.given("moe_router_dtype")})


@rule("pre-softmax-needed-for-top-1")
def pre_softmax(job: Job) -> Iterator[Hit]:
    """Top-1 after softmax only."""
    sinkhorn = job.get("moe_router_load_balancing_type") == "sinkhorn"
    softmax = job.get("moe_router_score_function") == "softmax"
    if job.number("moe_router_topk") == 1 and softmax and not job.on("moe_router_pre_softmax") and not sinkhorn:
        yield Hit()


@rule("group-topk-needs-groups")
def group_topk(job: Job) -> Iterator[Hit]:
    """Groups must exist, divide the experts, and be at least as many as are chosen."""
    topk, groups = job.number("moe_router_group_topk"), job.number("moe_router_num_groups")
    if not topk:
        return
    experts = job.number("num_moe_experts")
    if not groups or (experts or 0) % groups or topk > groups:
        yield Hit({"topk": topk, "groups": groups, "experts": experts})


@rule("expert-bias-needs-sigmoid")
def expert_bias(job: Job) -> Iterator[Hit]:
    """Bias for balancing without an auxiliary loss."""
    score = job.get("moe_router_score_function")
    allowed = ("sigmoid",) if job.core < (0, 19) else ("sigmoid", "sqrtsoftplus")
    if job.on("moe_router_enable_expert_bias") and score not in allowed:
        yield Hit({"score": score})


@rule("capacity-needs-aux-loss")
def capacity_balancing(job: Job) -> Iterator[Hit]:
    """Checked for a negative factor too."""
    kinds = job.words("moe_router_load_balancing_type")
    if job.number("moe_expert_capacity_factor") is not None and not set(kinds) <= _AUX_LOSSES:
        yield Hit({"kind": ", ".join(kinds)})


def _capacity(job: Job) -> float | None:
    factor = job.number("moe_expert_capacity_factor")
    return None if factor is None or factor < 0 else factor


@rule("pad-needs-capacity")
def pad_needs_capacity(job: Job) -> Iterator[Hit]:
    """A negative factor counts as none."""
    if job.on("moe_pad_expert_input_to_capacity") and _capacity(job) is None:
        yield Hit({"factor": job.number("moe_expert_capacity_factor") or "not set"})


@rule("capacity-negative")
def capacity_negative(job: Job) -> Iterator[Hit]:
    """Means none."""
    factor = job.number("moe_expert_capacity_factor")
    if factor is not None and factor < 0:
        yield Hit({"factor": factor})


@rule("capacity-drops-tokens")
def capacity_drops(job: Job) -> Iterator[Hit]:
    """A factor that drops."""
    if _capacity(job) is not None:
        yield Hit({"factor": _capacity(job)})


@rule("deepep-pad-to-capacity")
def deepep_pad(job: Job) -> Iterator[Hit]:
    """DeepEP and padding to capacity."""
    if job.type == FLEX and job.backend == "deepep" and job.on("moe_pad_expert_input_to_capacity"):
        yield Hit()


def _rank_capacity(job: Job) -> bool:
    return job.number("moe_expert_rank_capacity_factor") is not None


@rule("rank-capacity-backend")
def rank_capacity_backend(job: Job) -> Iterator[Hit]:
    """The backend field decides, whatever the type."""
    allowed = ("hybridep",) if job.core < (0, 19) else ("hybridep", "ncclep")
    if _rank_capacity(job) and job.backend not in allowed:
        yield Hit({"backend": job.backend, "allowed": " or ".join(allowed)})


@rule("rank-capacity-needs-fused-experts")
def rank_capacity_experts(job: Job) -> Iterator[Hit]:
    """HybridEP with a budget needs experts that read counts on the device."""
    concerned = job.backend == "hybridep" or job.core < (0, 19)
    if not _rank_capacity(job) or not concerned or job.on("use_transformer_engine_op_fuser"):
        return
    if job.core >= (0, 20):
        if not job.on("moe_use_grouped_tensor"):
            yield Hit({"missing": "neither use_transformer_engine_op_fuser nor moe_use_grouped_tensor is on"})
    else:
        yield Hit({"missing": "use_transformer_engine_op_fuser is off"})


@rule("rank-capacity-without-flex")
def rank_capacity_without_flex(job: Job) -> Iterator[Hit]:
    """Passes, and does nothing."""
    if job.type != FLEX and _rank_capacity(job) and job.backend == "hybridep":
        yield Hit({"type": job.type})


@rule("paged-stash-invalid")
def paged_stash(job: Job) -> Iterator[Hit]:
    """What Megatron-Core refuses next to a paged stash."""
    if not job.on("moe_paged_stash"):
        return
    if job.on("cpu_offloading"):
        yield Hit({"what": "cpu_offloading"})
    if not _rank_capacity(job):
        yield Hit({"what": "no moe_expert_rank_capacity_factor"})
    offloaded = _STASHED & set(job.words("offload_modules"))
    if offloaded:
        yield Hit({"what": f"offload_modules {', '.join(sorted(offloaded))}"})
