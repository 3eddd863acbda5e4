"""Checks on environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule
from moe_dispatch.megatron.rules.signs import is_set

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_OFFLOAD = "NVTE_CPU_OFFLOAD_V1"
_FSDP = ("use_torch_fsdp2", "use_megatron_fsdp")


@rule("max-connections-must-be-1")
def connections_must_be_one(job: Job) -> Iterator[Hit]:
    """Megatron-LM's assertion before Blackwell."""
    parallel = [f"{name}={size}" for name, size in (("TP", job.tp), ("CP", job.cp)) if size > 1]
    if not parallel or job.overlap or any(is_set(job, name) for name in _FSDP):
        return
    value = job.variable(_CONNECTIONS)
    if value != "1" and job.gpu.vendor == "nvidia" and float(job.gpu.capability) < 10:
        yield Hit({"value": value or "unset", "parallel": " and ".join(parallel), "gpu": job.gpu.name.upper()})


@rule("exported-variable-wins")
def exported_wins(job: Job) -> Iterator[Hit]:
    """Both the shell and the recipe set it, differently."""
    for name, recipe_value in job.config.shadowed_env.items():
        yield Hit({"name": name, "value": job.config.env.get(name), "recipe_value": recipe_value})


@rule("offload-variable-missing")
def offload_variable(job: Job) -> Iterator[Hit]:
    """For Transformer Engine 2.10 and newer."""
    value = job.config.env.get(_OFFLOAD)
    if value == "1" or not job.on("fine_grained_activation_offloading"):
        return
    if not job.package_below("transformer_engine", "2.10"):
        yield Hit({"te": job.packages["transformer_engine"], "value": job.variable(_OFFLOAD) or "unset"})


@rule("nvlink-domain-size-unread")
def domain_size_unread(job: Job) -> Iterator[Hit]:
    """A number that contradicts the site."""
    value = job.config.env.get("NVLINK_DOMAIN_SIZE")
    domain = job.site.nvlink_domain if job.site else None
    if value is not None and domain is not None and job.runs("hybridep") and value != str(domain):
        yield Hit({"value": value, "domain": domain})
