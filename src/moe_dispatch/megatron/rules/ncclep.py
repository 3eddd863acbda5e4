"""Checks on NCCL-EP."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.resolution import FLEX
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule
from moe_dispatch.megatron.rules.signs import uneven_lengths

_WIRE = ("moe_dispatch_fwd_dtype", "moe_combine_bwd_dtype")
_EXPERTS = ("use_transformer_engine_op_fuser", "moe_grouped_gemm")
_RANK_CAPACITY = "moe_expert_rank_capacity_factor"
_STATIC = "moe_ncclep_static_shape"
_CUTE = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"


def _missing_experts(job: Job) -> str:
    return " and ".join(name for name in _EXPERTS if not job.on(name))


def _static_field(job: Job) -> str | None:
    """The setting that makes shapes static; None in eager mode."""
    if job.core < (0, 20):
        return _STATIC if job.on(_STATIC) else None
    return _RANK_CAPACITY if job.number(_RANK_CAPACITY) is not None else None


@rule("ncclep-capacity-factor")
def capacity_factor(job: Job) -> Iterator[Hit]:
    """No drop and pad."""
    if not job.runs("ncclep"):
        return
    factor = job.number("moe_expert_capacity_factor")
    if factor is not None and factor >= 0:
        yield Hit({"field": "moe_expert_capacity_factor"})
    elif job.on("moe_pad_expert_input_to_capacity"):
        yield Hit({"field": "moe_pad_expert_input_to_capacity"})


@rule("ncclep-grouped-tensor")
def grouped_tensor(job: Job) -> Iterator[Hit]:
    """Grouped tensors need the op fuser here."""
    if job.backend == "ncclep" and job.on("moe_use_grouped_tensor") and not job.on("use_transformer_engine_op_fuser"):
        yield Hit()


def _quantised(job: Job) -> Iterator[tuple[str, object]]:
    for name in _WIRE:
        if job.get(name) not in ("bf16", None):
            yield name, job.get(name)


@rule("wire-dtype-needs-ncclep")
def wire_dtype(job: Job) -> Iterator[Hit]:
    """Only NCCL-EP carries quantised rows."""
    if job.type == FLEX and job.backend == "ncclep":
        return
    for name, value in _quantised(job):
        yield Hit({"field": name, "value": value, "dispatcher": job.running})


@rule("wire-dtype-needs-fused-experts")
def wire_dtype_experts(job: Job) -> Iterator[Hit]:
    """Only the fused grouped GEMM takes them."""
    missing = _missing_experts(job)
    if job.type == FLEX and job.backend == "ncclep" and missing:
        for name, value in _quantised(job):
            yield Hit({"field": name, "value": value, "missing": missing})


@rule("ncclep-zero-copy-needs-static")
def zero_copy(job: Job) -> Iterator[Hit]:
    """Fixed buffers need static shapes."""
    if job.runs("ncclep") and job.on("moe_ncclep_zero_copy") and _static_field(job) is None:
        yield Hit({"missing": _STATIC if job.core < (0, 20) else _RANK_CAPACITY})


@rule("ncclep-static-needs-fused-experts")
def static_experts(job: Job) -> Iterator[Hit]:
    """Counts are read on the device."""
    if not job.runs("ncclep"):
        return
    field, missing = _static_field(job), _missing_experts(job)
    if field and missing:
        yield Hit({"field": field, "missing": missing})


@rule("ncclep-static-quantised")
def static_quantised(job: Job) -> Iterator[Hit]:
    """Quantised experts need Blackwell and the CuTe DSL kernels."""
    if not job.runs("ncclep") or (job.get("fp8") is None and job.get("fp4") is None):
        return
    field = _static_field(job)
    if field is None:
        return
    if job.variable(_CUTE) in (None, "0"):
        yield Hit({"field": field, "missing": f"{_CUTE} is not 1"})
    elif job.gpu.vendor == "nvidia" and float(job.gpu.capability) < 10:
        yield Hit({"field": field, "missing": f"{job.gpu.name.upper()} is older than Blackwell"})


@rule("ncclep-needs-rank-capacity")
def needs_rank_capacity(job: Job) -> Iterator[Hit]:
    """No eager mode in this release."""
    if job.runs("ncclep") and job.number(_RANK_CAPACITY) is None:
        yield Hit()


@rule("ncclep-uneven-tokens")
def uneven_tokens(job: Job) -> Iterator[Hit]:
    """A sign of variable lengths."""
    sign = uneven_lengths(job)
    if sign and job.runs("ncclep"):
        yield Hit({"sign": sign})


@rule("ncclep-overlap-needs-static")
def overlap_needs_static(job: Job) -> Iterator[Hit]:
    """Release 0.19 warns about it."""
    if job.runs("ncclep") and job.overlap and not job.on(_STATIC):
        yield Hit()


@rule("ncclep-needs-nccl")
def needs_nccl(job: Job) -> Iterator[Hit]:
    """The runtime's version counts."""
    if job.runs("ncclep") and job.package_below("nccl", "2.30.4"):
        yield Hit({"have": job.packages["nccl"]})
