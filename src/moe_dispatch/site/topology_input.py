"""What the topology rules look at: one job's expert-parallel group, its environment and the site, from any source.

`doctor` fills it from a running job, `lint` and `emit` from a configuration; the rules cannot tell the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.site.exchange import ExchangeFacts, exchange_facts
from moe_dispatch.site.model import Site

Framework = Literal["megatron-lm", "megatron-bridge"]

_OFF = frozenset({"0", "false"})
_MOST_DIGITS = 9
"""A longer number is no number of ranks, and the interpreter refuses to convert very long ones."""


class RankPlace(BaseModel):
    """Where one rank was seen.

    Fields:
        domain: name of its NVLink partition, equal on all ranks that reach each other (`GpuFabric.domain`, or the
            host where NVLink ends at the node); None when unknown.
        gpu: UUID or PCI address of the device it uses; nic: network adapter that it uses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(ge=0)
    host: str
    domain: str | None = None
    gpu: str | None = None
    nic: str | None = None


class TopologyInput(BaseModel):
    """One job on one site; sizes are the effective ones, after every override.

    Fields:
        backend: effective dispatcher backend (`alltoall`, `deepep`, `hybridep`, ...).
        ep, expert_tp: the exchange group has `ep * expert_tp` ranks, consecutive in Megatron's rank orders.
        world: all ranks; None means one for each GPU of the site.
        ranks_per_node: None means one for each GPU of a node.
        tokens_per_rank: tokens that one rank routes in one micro-batch; micro_batch: sequences in it.
        environment: variables at process start (`/proc/<pid>/environ`), not as the program changed them later.
        versions: component -> version, keys of `site.stack.stack_fingerprint`.
        placement: ranks where they were seen; empty when unknown.
        framework: whose additional rules hold; None when unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    site: Site
    ep: int = Field(default=1, ge=1)
    expert_tp: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    cp: int = Field(default=1, ge=1)
    world: int | None = Field(default=None, ge=1)
    ranks_per_node: int | None = Field(default=None, ge=1)
    tokens_per_rank: int | None = Field(default=None, ge=0)
    micro_batch: int | None = Field(default=None, ge=1)
    environment: Mapping[str, str] = Field(default_factory=dict)
    versions: Mapping[str, str | None] = Field(default_factory=dict)
    placement: tuple[RankPlace, ...] = ()
    framework: Framework | None = None

    @property
    def group(self) -> int:
        """Ranks that exchange tokens: EP x expert TP."""
        return self.ep * self.expert_tp

    @property
    def ranks(self) -> int | None:
        """All ranks of the job."""
        return self.world or self.site.ranks

    @cached_property
    def facts(self) -> ExchangeFacts:
        """What the backend demands of the machine."""
        return exchange_facts(self.backend)

    @property
    def node_ranks(self) -> int | None:
        """Ranks on one node; None when unknown."""
        return self.ranks_per_node or self.site.gpus_per_node or None

    @property
    def spans_nodes(self) -> bool:
        """Whether one group must have members on several nodes."""
        return self.node_ranks is not None and self.group > self.node_ranks

    @property
    def domain(self) -> int | None:
        """Ranks of this job that one NVLink domain can hold; None when unknown.

        A job has at least one group, whatever the number of nodes the site was declared with.
        """
        size, gpus = self.site.nvlink_domain, self.site.gpus_per_node
        if size is None:
            return None
        usable = max(1, size // gpus) * (self.node_ranks or gpus) if gpus else size
        return min(usable, max(self.ranks or usable, self.group))

    @cached_property
    def domain_by_rank(self) -> tuple[str, ...] | None:
        """NVLink domain of every rank: as seen, or as rank order makes certain; None when unknown.

        Where NVLink ends at the node, consecutive ranks fill node after node; in which rack a node is, only a placement
        tells.
        """
        if self.placement:
            seen = {place.rank: place.domain for place in self.placement}
            ordered = [seen.get(rank) for rank in range(len(seen))]
            return tuple(domain for domain in ordered if domain) if all(ordered) else None
        if self.ranks is None or self.node_ranks is None or self.site.nvlink_domain is None:
            return None
        if not self.site.is_multi_node_nvlink:
            return tuple(str(rank // self.node_ranks) for rank in range(self.ranks))
        return None

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """For each group that is wholly known, its ranks in each of its domains; empty when domains are unknown."""
        domains = self.domain_by_rank or ()
        firsts = range(0, len(domains) - self.group + 1, self.group)
        return tuple(tuple(Counter(domains[first : first + self.group]).values()) for first in firsts)

    @property
    def best_inside(self) -> int | None:
        """Members of one group inside one NVLink domain when it is placed well: min(group, domain)."""
        return None if self.domain is None else min(self.group, self.domain)

    @property
    def inside(self) -> int | None:
        """Members of one group inside one NVLink domain: as placed when that is equal everywhere, else at best."""
        seen = {count for counts in self.members for count in counts}
        return seen.pop() if len(seen) == 1 else self.best_inside

    @property
    def declared_inside(self) -> int | None:
        """The same as the environment says it to the backend; None when unset, unknown to it, or no positive number."""
        text = self.environment.get(self.facts.domain_variable or "", "").strip()
        return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0 else None

    @property
    def domains(self) -> int | None:
        """Domains that the backend will see in one group: by its variable if that is set, else by the site."""
        inside = self.declared_inside or self.inside
        return None if inside is None else -(-self.group // inside)

    @property
    def crosses_domains(self) -> bool:
        """Whether a group's tokens leave an NVLink domain; False when the domain is unknown."""
        return (self.domains or 1) > 1

    def switched(self, name: str | None) -> bool | None:
        """A variable that only `0` and `false` switch off; None when it is not set."""
        value = self.environment.get(name or "")
        return None if value is None else value.strip().lower() not in _OFF
