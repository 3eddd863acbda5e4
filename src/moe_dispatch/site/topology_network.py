"""Checks of what carries a group's tokens between NVLink domains: adapters, queues and libraries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from moe_dispatch.core.finding import Severity
from moe_dispatch.site.topology_check import Hit, check
from moe_dispatch.site.topology_input import TopologyInput
from moe_dispatch.site.versions import matches

_RDMA = ("infiniband", "roce")
_QUEUE_FABRICS = (*_RDMA, "unknown")
_DIRECT = {"nvidia_peermem", "nv_peer_mem", "nvidia-open"}
_MNNVL_CRASHES = {"==2.27.5": 44, "==2.30.4": 40}
"""NCCL version -> ranks of one domain from which crashes are reported (NVIDIA/nccl#2186)."""


@check
def queue_too_deep(job: TopologyInput) -> Iterator[Hit]:
    """More tokens than a send queue between domains holds."""
    queue, tokens = job.facts.queue, job.tokens_per_rank
    if queue is None or tokens is None or not job.crosses_domains or job.site.fabric not in _QUEUE_FABRICS:
        return
    depth = queue.depth(tokens)
    if depth < queue.limit:
        return
    advice: list[str] = []
    if job.micro_batch:
        per_sequence = tokens // job.micro_batch
        fitting = [size for size in range(1, job.micro_batch) if queue.depth(per_sequence * size) < queue.limit]
        if fitting:
            fewer = per_sequence * fitting[-1]
            advice = [f"micro batch {fitting[-1]} ({fewer} tokens per rank, a queue of {queue.depth(fewer)})"]
    if job.site.fabric == "unknown":
        advice.append("the network is not known here; name it (--site h100-infiniband) to be sure")
    factor = 2
    while tokens // factor > queue.most_tokens:
        factor *= 2
    values = {
        "tokens": tokens,
        "depth": depth,
        "limit": queue.limit,
        "most": queue.most_tokens,
        "factor": factor,
        "fewer": tokens // factor,
    }
    yield Hit(values, advice=tuple(advice))


@check
def gid_ignored(job: TopologyInput) -> Iterator[Hit]:
    """RoCE between domains under a backend that picks the GID by itself."""
    if job.facts.ignores_gid and job.crosses_domains and job.site.fabric == "roce":
        index = job.environment.get("NCCL_IB_GID_INDEX")
        yield Hit({"given": f" (NCCL_IB_GID_INDEX={index} is not read)" if index else ""})


@check
def no_rdma(job: TopologyInput) -> Iterator[Hit]:
    """RDMA is needed between domains, and the machine that was seen has no such adapter."""
    without = not job.site.declared and job.site.fabric in ("ethernet", "none")
    if job.facts.needs_rdma and job.crosses_domains and without:
        yield Hit()


@check
def no_gpudirect_module(job: TopologyInput) -> Iterator[Hit]:
    """RDMA between domains, on a machine that was seen, without a module that gives adapters GPU memory."""
    site = job.site
    needed = job.facts.nvshmem and job.crosses_domains and site.fabric in _RDMA and site.device == "cuda"
    if needed and not site.declared and not _DIRECT & set(site.kernel_modules):
        yield Hit()


@check
def nvshmem_between_domains(job: TopologyInput) -> Iterator[Hit]:
    """NVSHMEM carries tokens between nodes; the rule's versions and GPUs say where that is known to fail."""
    if job.facts.nvshmem and job.crosses_domains:
        yield Hit()


@check
def group_above_fabric_ceiling(job: TopologyInput) -> Iterator[Hit]:
    """A group as large as those that failed on this network."""
    ceiling = next((size for kind, size in job.facts.fabric_ceiling.items() if kind == job.site.fabric), None)
    if ceiling is not None and job.group >= ceiling and job.crosses_domains:
        yield Hit({"ceiling": ceiling})


@check
def large_clique(job: TopologyInput) -> Iterator[Hit]:
    """So many ranks in one NVLink domain that this NCCL is reported to crash."""
    nccl = job.versions.get("nccl")
    if nccl is None or job.domain is None or not job.site.is_multi_node_nvlink:
        return
    for condition, ranks in _MNNVL_CRASHES.items():
        if matches(nccl, condition) and job.domain >= ranks:
            yield Hit({"clique": job.domain, "from_ranks": ranks})


@check
def shared_nic(job: TopologyInput) -> Iterator[Hit]:
    """GPUs whose adapter is the same, as placed, or as the machine's tree says; the first of them."""
    if not job.crosses_domains:
        return
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place in job.placement:
        if place.nic:
            users[place.host, place.nic].append(f"rank {place.rank}")
    if not users:
        for gpu in job.site.gpus:
            if gpu.nics:
                users["", gpu.nics[0]].append(f"GPU {gpu.index}")
    shared = [(key, sharing) for key, sharing in users.items() if len(sharing) > 1]
    if not shared:
        return
    (host, nic), sharing = shared[0]
    able = {each.name for each in job.site.nics if each.active and each.kind != "ethernet"}
    idle = sorted(able - {name for where, name in users if where == host})
    values = {
        "users": ", ".join(sharing),
        "nic": f"{nic} on {host}" if host else nic,
        "idle": f"idle: {', '.join(idle)}" if idle else "no adapter is idle",
        "more": f", and {len(shared) - 1} more so" if shared[1:] else "",
    }
    yield Hit(values, None if idle else Severity.INFO)
