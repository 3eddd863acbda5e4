"""Checks of where the ranks of each EP group are: as they were seen, or as rank order puts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from moe_dispatch.core.finding import Severity
from moe_dispatch.site.topology_check import Hit, check
from moe_dispatch.site.topology_input import TopologyInput

_SHARED_GPU_ALLOWED = "NCCL_MULTI_RANK_GPU_ENABLE"


@check
def shared_gpu(job: TopologyInput) -> Iterator[Hit]:
    """Two ranks of one host on one GPU; the first of them."""
    users: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in job.placement:
        if place.gpu:
            users[place.host, place.gpu].append(place.rank)
    shared = [(key, ranks) for key, ranks in users.items() if len(ranks) > 1]
    if not shared:
        return
    (host, device), ranks = shared[0]
    values = {
        "ranks": ", ".join(map(str, ranks)),
        "host": host,
        "device": device,
        "more": f", and {len(shared) - 1} more GPUs are shared" if shared[1:] else "",
    }
    yield Hit(values, Severity.WARNING if job.environment.get(_SHARED_GPU_ALLOWED) == "1" else None)


@check
def layout_does_not_fit(job: TopologyInput) -> Iterator[Hit]:
    """The ranks that were seen running do not divide into the parallel groups; a configuration alone is not asked."""
    if not job.placement or job.world is None:
        return
    blocks = {"TP x CP x PP": job.tp * job.cp * job.pp, "expert TP x EP x PP": job.group * job.pp}
    for label, size in blocks.items():
        if job.world % size:
            yield Hit({"label": label, "size": size, "world": job.world})


@check
def group_straddles(job: TopologyInput) -> Iterator[Hit]:
    """Groups that a domain's edge cuts into unequal parts, or that could have stayed inside one; the first of them."""
    best = job.best_inside
    if best is None:
        return
    fewest = -(-job.group // best)
    cut = [(place, counts) for place, counts in enumerate(job.members) if len(set(counts)) > 1 or len(counts) > fewest]
    if not cut:
        return
    place, counts = cut[0]
    uneven = any(len(set(parts)) > 1 for _, parts in cut)
    values = {
        "ranks": f"{place * job.group}-{(place + 1) * job.group - 1}"
        + (f" and {len(cut) - 1} more" if cut[1:] else ""),
        "counts": " + ".join(map(str, counts)),
        "best": best,
        "how": "in one" if fewest == 1 else "in each",
    }
    yield Hit(values, Severity.ERROR if job.facts.even_domains and uneven else None)


@check
def placement_unknown(job: TopologyInput) -> Iterator[Hit]:
    """Multi-node NVLink whose racks are not known, with groups that do not tile a rack."""
    size, gpus = job.site.nvlink_domain, job.site.gpus_per_node
    if not job.site.is_multi_node_nvlink or size is None or job.domain_by_rank is not None:
        return
    if job.spans_nodes and size % job.group and (job.ranks or 0) > size:
        yield Hit({"size": size, "nodes": -(-job.group // gpus)})
