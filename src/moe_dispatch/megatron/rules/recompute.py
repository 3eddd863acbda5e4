"""Checks on activation recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule

_GRANULARITIES = (None, "full", "selective")


@rule("recompute-granularity-invalid")
def granularity(job: Job) -> Iterator[Hit]:
    """Full, selective or none."""
    value = job.get("recompute_granularity")
    if value not in _GRANULARITIES:
        yield Hit({"granularity": value})


@rule("recompute-full-needs-method")
def full_needs_method(job: Job) -> Iterator[Hit]:
    """Method and number of layers."""
    if job.get("recompute_granularity") != "full":
        return
    missing = [name for name in ("recompute_method", "recompute_num_layers") if job.get(name) is None]
    if missing:
        yield Hit({"missing": " and ".join(missing)})


@rule("recompute-selective-with-layers")
def selective_with_layers(job: Job) -> Iterator[Hit]:
    """Modules are chosen, not layers."""
    layers = job.number("recompute_num_layers")
    if job.get("recompute_granularity") == "selective" and layers is not None:
        yield Hit({"layers": layers})


@rule("moe-layer-recompute-deprecated")
def moe_layer_recompute(job: Job) -> Iterator[Hit]:
    """The old switch."""
    if job.on("moe_layer_recompute"):
        yield Hit()


@rule("recompute-moe-act-without-grouped-gemm")
def moe_act(job: Job) -> Iterator[Hit]:
    """The activation of grouped experts."""
    selective = job.get("recompute_granularity") == "selective"
    if selective and "moe_act" in job.recomputed and not job.on("moe_grouped_gemm"):
        yield Hit()


@rule("recompute-with-delayed-scaling")
def delayed_scaling(job: Job) -> Iterator[Hit]:
    """Modules whose output is discarded and computed again."""
    if job.get("recompute_granularity") != "selective" or job.get("fp8") is None:
        return
    modules = [name for name in ("moe_act", "layernorm") if name in job.recomputed]
    if modules and job.get("fp8_recipe") == "delayed":
        yield Hit({"modules": " and ".join(modules)})
