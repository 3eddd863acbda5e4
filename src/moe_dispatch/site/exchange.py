"""What a backend demands of NVLink, nodes and network: `exchange.yaml` as typed data."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.data import read_yaml
from moe_dispatch.site.devices import NicKind


class QueueLimit(BaseModel):
    """Send-queue entries of one network queue pair: `per_token * tokens + extra` must stay below `limit`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    per_token: int
    extra: int
    limit: int

    def depth(self, tokens: int) -> int:
        """Entries that a rank with so many tokens needs."""
        return self.per_token * tokens + self.extra

    @property
    def most_tokens(self) -> int:
        """Most tokens on a rank that still fit."""
        return (self.limit - 1 - self.extra) // self.per_token


class ExchangeFacts(BaseModel):
    """Demands of one backend; the defaults demand nothing.

    Fields:
        group_sizes: sizes of the exchange group for which the library holds a configuration; empty when any.
        node_ranks: ranks that every node must hold once a group spans nodes.
        refused_on: catalogue keys of GPUs on which it does not work or is not accepted.
        domain_variable: environment variable that gives a group's ranks in one NVLink domain; read by domain_source.
        assumed_domain: ranks that builds without detection take when that variable is not set.
        largest_domain: most ranks in one domain that its kernels are built for.
        fabric_variable: variable that switches fabric handles (multi-node NVLink) off.
        fabric_handles: it shares memory through them between nodes of one NVLink domain.
        even_domains: each domain of a group must hold as many of its ranks.
        needs_nvlink: it refuses GPUs of one node without NVLink between them.
        needs_rdma: between domains it writes through an RDMA adapter; nvshmem: by NVSHMEM.
        queue: limit on tokens between domains.
        ignores_gid: it does not honour NCCL_IB_GID_INDEX on RoCE.
        fabric_ceiling: network -> group size from which failures are reported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group_sizes: tuple[int, ...] = ()
    group_sizes_source: str = ""
    node_ranks: int | None = None
    refused_on: tuple[str, ...] = ()
    domain_variable: str | None = None
    domain_source: str = ""
    assumed_domain: int | None = None
    largest_domain: int | None = None
    fabric_variable: str | None = None
    fabric_handles: bool = False
    even_domains: bool = False
    needs_nvlink: bool = False
    needs_rdma: bool = False
    nvshmem: bool = False
    queue: QueueLimit | None = None
    ignores_gid: bool = False
    fabric_ceiling: dict[NicKind, int] = Field(default_factory=dict)


@cache
def load_exchange() -> dict[str, ExchangeFacts]:
    """Facts by backend name."""
    facts = read_yaml("moe_dispatch.site", "exchange.yaml")
    return {name: ExchangeFacts.model_validate(entry) for name, entry in facts.items()}


def exchange_facts(backend: str | None) -> ExchangeFacts:
    """Facts of a backend; one that is not listed demands nothing."""
    return load_exchange().get(backend or "", ExchangeFacts())
