"""Checks of an EP group against the NVLink domain and the variables that describe it to a backend."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.core.finding import Severity
from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.site.topology_check import Hit, check
from moe_dispatch.site.topology_input import TopologyInput


@check
def domain_variable_differs(job: TopologyInput) -> Iterator[Hit]:
    """The domain variable is a number, but not min(group, domain)."""
    given = job.declared_inside
    if given is not None and job.inside is not None and given != job.inside:
        yield Hit({"given": given})


@check
def domain_variable_unset(job: TopologyInput) -> Iterator[Hit]:
    """The domain variable is not set, and what older builds take instead is not right here."""
    name, assumed = job.facts.domain_variable, job.facts.assumed_domain
    if name and name not in job.environment and job.inside not in (None, assumed) and job.group > 1:
        yield Hit({"assumed": assumed})


@check
def domain_variable_is_no_size(job: TopologyInput) -> Iterator[Hit]:
    """The domain variable is set and no positive number."""
    given = job.environment.get(job.facts.domain_variable or "")
    if given is not None and job.declared_inside is None:
        yield Hit({"given": given, "inside": job.inside or "the group's ranks in one NVLink domain"})


@check
def group_is_no_multiple(job: TopologyInput) -> Iterator[Hit]:
    """The group does not divide into equal parts, one for each domain."""
    members = job.declared_inside or job.inside
    if members is not None and job.group % members:
        yield Hit({"members": members, "domain": job.domain or members})


@check
def domain_above_largest(job: TopologyInput) -> Iterator[Hit]:
    """More members in one domain than the kernels are built for."""
    members, largest = job.declared_inside or job.inside, job.facts.largest_domain
    if members is not None and largest is not None and members > largest:
        yield Hit({"members": members, "largest": largest})


@check
def group_above_rack(job: TopologyInput) -> Iterator[Hit]:
    """On multi-node NVLink, the group is larger than the domain."""
    size = job.site.nvlink_domain
    if job.site.is_multi_node_nvlink and size is not None and job.group > size:
        severity = Severity.ERROR if job.framework == "megatron-bridge" else None
        yield Hit({"domain": size}, severity)


@check
def fabric_variable_on_board(job: TopologyInput) -> Iterator[Hit]:
    """Multi-node NVLink is asked for where NVLink ends at the node."""
    if job.switched(job.facts.fabric_variable) and job.site.nvlink_domain and not job.site.is_multi_node_nvlink:
        given = job.environment.get(job.facts.fabric_variable or "")
        yield Hit({"given": given, "domain": job.site.nvlink_domain})


@check
def fabric_variable_off(job: TopologyInput) -> Iterator[Hit]:
    """Multi-node NVLink is switched off although the group needs it."""
    if job.switched(job.facts.fabric_variable) is False and job.site.is_multi_node_nvlink and job.spans_nodes:
        yield Hit({"given": job.environment.get(job.facts.fabric_variable or "")})


@check
def group_size_not_listed(job: TopologyInput) -> Iterator[Hit]:
    """The library holds no configuration for the group's size."""
    sizes = job.facts.group_sizes
    if sizes and job.group > 1 and job.group not in sizes:
        below = [size for size in sizes if size < job.group][-1:]
        above = [size for size in sizes if size > job.group][:1]
        yield Hit({"allowed": ", ".join(map(str, sizes)), "nearest": " or ".join(map(str, below + above))})


@check
def gpu_refused(job: TopologyInput) -> Iterator[Hit]:
    """The backend does not work, or is not accepted, on this GPU."""
    if job.site.gpu in job.facts.refused_on:
        yield Hit()


@check
def node_ranks_not_as_needed(job: TopologyInput) -> Iterator[Hit]:
    """A group over several nodes that do not hold the number of ranks the backend assumes."""
    needed = job.facts.node_ranks
    if needed and job.spans_nodes and job.node_ranks != needed and job.site.gpu not in job.facts.refused_on:
        yield Hit({"needed": needed})


@check
def no_nvlink(job: TopologyInput) -> Iterator[Hit]:
    """Two GPUs of this node without NVLink between them; the first such pair."""
    if not job.facts.needs_nvlink or job.group < 2:
        return
    gpus = job.site.gpus
    for place, gpu in enumerate(gpus):
        for peer, link in zip(gpus[place + 1 :], gpu.links[place + 1 :], strict=False):
            if not link.startswith("NV"):
                yield Hit({"first": gpu.index, "second": peer.index, "link": link})
                return


@check
def devices_by_name(job: TopologyInput) -> Iterator[Hit]:
    """CUDA_VISIBLE_DEVICES has an entry that is no number."""
    given = job.environment.get("CUDA_VISIBLE_DEVICES", "")
    if any(part and not part.strip().isdecimal() for part in given.split(",")):
        yield Hit({"given": given})


@check
def no_peer_access(job: TopologyInput) -> Iterator[Hit]:
    """Two GPUs of this node that cannot read each other's memory; the first such pair."""
    gpus = job.site.gpus
    for place, gpu in enumerate(gpus):
        for peer, readable in zip(gpus[place + 1 :], gpu.p2p[place + 1 :], strict=False):
            if not readable:
                yield Hit({"first": gpu.index, "second": peer.index})
                return


@check
def gpu_in_instances(job: TopologyInput) -> Iterator[Hit]:
    """A GPU that is split into MIG instances."""
    split = [str(gpu.index) for gpu in job.site.gpus if gpu.mig]
    if split and job.group > 1:
        yield Hit({"split": ", ".join(split)})


@check
def no_imex_channel(job: TopologyInput) -> Iterator[Hit]:
    """A group over nodes of one NVLink domain, on a machine that was seen, without an IMEX channel."""
    site = job.site
    if site.is_multi_node_nvlink and not site.declared and not site.imex_channels and job.spans_nodes:
        yield Hit(severity=None if job.facts.fabric_handles else Severity.WARNING)


@check
def fabric_not_ready(job: TopologyInput) -> Iterator[Hit]:
    """The first GPU whose registration with the NVLink fabric is not complete, or failed where a rack needs it."""
    model = load_hardware().get(job.site.gpu or "")
    rack = model is not None and model.nvlink_domain > model.gpus_per_node
    for gpu in job.site.gpus:
        fabric = gpu.fabric
        if fabric is None or fabric.state == "unknown" or fabric.domain is not None:
            continue
        if fabric.state in ("not_started", "in_progress") or rack:
            values = {
                "gpu_index": gpu.index,
                "state": fabric.state.replace("_", " "),
                "status": f" with status {fabric.status!r}" if fabric.status not in ("", "success") else "",
                "cluster": " and no cluster" if fabric.state == "completed" else "",
            }
            yield Hit(values, Severity.WARNING if fabric.state == "not_supported" else None)
            return


@check
def fabric_problems(job: TopologyInput) -> Iterator[Hit]:
    """A GPU whose NVLink health report complains."""
    for gpu in job.site.gpus:
        if gpu.fabric is not None and gpu.fabric.problems:
            yield Hit({"gpu_index": gpu.index, "problems": ", ".join(gpu.fabric.problems)})


@check
def several_partitions(job: TopologyInput) -> Iterator[Hit]:
    """GPUs of this node in different NVLink partitions."""
    domains = sorted({gpu.fabric.domain for gpu in job.site.gpus if gpu.fabric and gpu.fabric.domain})
    if len(domains) > 1:
        yield Hit({"count": len(domains), "partitions": ", ".join(domains)})


@check
def group_crosses(job: TopologyInput) -> Iterator[Hit]:
    """The group crosses NVLink domains."""
    if job.inside is not None and job.group > job.inside:
        yield Hit({"domains": -(-job.group // job.inside)})
