"""Checks of where the ranks of each EP group are: as they were seen, or as rank order puts them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from moe_dispatch.core.finding import Severity
from moe_dispatch.site.topology_check import Hit, check
from moe_dispatch.site.topology_input import RankPlace, TopologyInput

_SHARED_GPU_ALLOWED = "NCCL_MULTI_RANK_GPU_ENABLE"


@check
def shared_gpu(job: TopologyInput) -> Iterator[Hit]:
    """Two ranks of one host on one GPU."""
    users: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in job.placement:
        if place.gpu:
            users[place.host, place.gpu].append(place.rank)
    severity = Severity.WARNING if job.environment.get(_SHARED_GPU_ALLOWED) == "1" else None
    for (host, device), ranks in users.items():
        if len(ranks) > 1:
            yield Hit({"ranks": ", ".join(map(str, ranks)), "host": host, "device": device}, severity)


@check
def group_straddles(job: TopologyInput) -> Iterator[Hit]:
    """Groups that a domain's edge cuts into unequal parts, or that could have stayed inside one; the first of them."""
    domains = _domain_by_rank(job)
    if domains is None or job.inside is None:
        return
    cut = []
    for first in range(0, len(domains) - job.group + 1, job.group):
        counts = list(Counter(domains[first : first + job.group]).values())
        if len(set(counts)) > 1 or len(counts) > -(-job.group // job.inside):
            cut.append((first, counts))
    if not cut:
        return
    first, counts = cut[0]
    more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
    fits = job.group <= job.inside
    uneven = len(set(counts)) > 1
    yield Hit(
        {
            "ranks": f"{first}-{first + job.group - 1}{more}",
            "counts": " + ".join(map(str, counts)),
            "best": job.inside,
            "how": "in one" if fits else "in each",
        },
        Severity.ERROR if job.facts.even_domains and uneven else None,
    )


@check
def placement_unknown(job: TopologyInput) -> Iterator[Hit]:
    """Multi-node NVLink whose racks are not known, with groups that do not tile a rack."""
    size, gpus = job.site.nvlink_domain, job.site.gpus_per_node
    if not job.site.is_multi_node_nvlink or size is None or _domain_by_rank(job) is not None:
        return
    if job.spans_nodes and size % job.group and (job.ranks or 0) > size:
        yield Hit({"size": size, "nodes": -(-job.group // gpus)})


def _domain_by_rank(job: TopologyInput) -> list[str] | None:
    """The NVLink domain of each rank; None when it is neither known nor certain."""
    if job.placement:
        return _seen(job.placement)
    per_node = job.node_ranks
    if job.ranks is None or per_node is None or job.site.nvlink_domain is None:
        return None
    if not job.site.is_multi_node_nvlink:
        return [str(rank // per_node) for rank in range(job.ranks)]
    return ["0"] * job.ranks if job.ranks <= job.site.nvlink_domain and job.site.declared else None


def _seen(placement: tuple[RankPlace, ...]) -> list[str] | None:
    """Domains by rank, when every rank from 0 on was seen with one."""
    domains = {place.rank: place.domain for place in placement}
    ordered = [domains.get(rank) for rank in range(len(domains))]
    return [domain for domain in ordered if domain is not None] if all(ordered) else None
