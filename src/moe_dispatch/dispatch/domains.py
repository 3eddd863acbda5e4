"""Which ranks of a group share a fast domain: one host, or the size the user gives (an NVLink domain can span
hosts).
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch.distributed as dist

from moe_dispatch.core.errors import UnsupportedByBackend, UsageError


@dataclass(frozen=True)
class Domains:
    """D domains of L consecutive ranks each. `index` is this rank's domain, `local` its place inside.

    A *rail* is the set of ranks with the same `local`: rows cross between domains only along a rail.
    """

    count: int
    size: int
    index: int
    local: int

    @property
    def remote(self) -> list[int]:
        """The other domains, the next one first, so that ranks do not all send to the same one."""
        return [(self.index + step) % self.count for step in range(1, self.count)]

    @property
    def peers(self) -> list[int]:
        """The other ranks of this domain, the next one first."""
        first = self.index * self.size
        return [first + (self.local + step) % self.size for step in range(1, self.size)]


def host_key() -> str:
    """Identifies the network host this process runs on; two network namespaces of one machine are two hosts."""
    try:
        namespace = str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}/{namespace}"


def detect_domains(group: dist.ProcessGroup, domain_size: int | None) -> Domains:
    """The domains of `group`: of `domain_size` ranks, the same on every rank, or one for each host; collective.

    Raises (on every rank alike):
        UsageError: the size does not divide the group.
        UnsupportedByBackend: hosts hold different numbers of ranks, or a host's ranks are not consecutive.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    size = _ranks_per_host(group) if domain_size is None else domain_size
    if size < 1 or world % size:
        raise UsageError(f"hierarchical: domain_size={size} does not divide the {world} ranks of the group")
    return Domains(count=world // size, size=size, index=rank // size, local=rank % size)


def _ranks_per_host(group: dist.ProcessGroup) -> int:
    hosts = [""] * dist.get_world_size(group)
    dist.all_gather_object(hosts, host_key(), group=group)
    runs = [host for i, host in enumerate(hosts) if i == 0 or host != hosts[i - 1]]
    counts = {hosts.count(host) for host in runs}
    if len(runs) != len(set(runs)) or len(counts) > 1:
        raise UnsupportedByBackend(
            f"hierarchical: ranks per host are not equal and consecutive: {hosts}",
            "give domain_size, or place the same number of consecutive EP ranks on every host",
        )
    return counts.pop()
