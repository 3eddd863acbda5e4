"""Checks on DeepEP."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule

_SET_BY_DEEPEP = (
    "NVSHMEM_IB_ENABLE_IBGDA",
    "NVSHMEM_QP_DEPTH",
    "NVSHMEM_MAX_TEAMS",
    "NVSHMEM_DISABLE_NVLS",
    "NVSHMEM_DISABLE_MNNVL",
    "NVSHMEM_CUMEM_GRANULARITY",
)
"""deepseek-ai/DeepEP@dd758caf:deep_ep/buffers/legacy.py."""


@rule("deepep-odd-sms")
def odd_sms(job: Job) -> Iterator[Hit]:
    """One channel is a pair of SMs."""
    found = job.effective
    if job.runs("deepep") and found and found.sm_count is not None and found.sm_count % 2:
        count = found.sm_count
        yield Hit({"field": found.sm_field, "count": count, "below": count - 1, "above": count + 1})


@rule("deepep-in-full-iteration-graph")
def full_iteration(job: Job) -> Iterator[Hit]:
    """The CPU waits inside dispatch."""
    if job.runs("deepep") and job.graph_impl == "full_iteration":
        yield Hit()


@rule("nvshmem-variable-overwritten")
def nvshmem_overwritten(job: Job) -> Iterator[Hit]:
    """Set here, and again by DeepEP."""
    names = [name for name in _SET_BY_DEEPEP if name in job.config.env]
    if names and job.runs("deepep"):
        yield Hit({"names": ", ".join(names)})
