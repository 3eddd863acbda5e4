"""How a topology check reports: a registry of pure functions from `TopologyInput` to hits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from moe_dispatch.core.finding import Severity
from moe_dispatch.site.model import Fabric
from moe_dispatch.site.topology_input import TopologyInput


@dataclass(frozen=True)
class Hit:
    """One thing that a check found.

    Fields:
        values: for the rule's templates, besides the common ones.
        severity: instead of the rule's own; advice: put before the rule's own.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    severity: Severity | None = None
    advice: tuple[str, ...] = ()


Check = Callable[[TopologyInput], Iterable[Hit]]

FABRIC_NAMES: dict[Fabric, str] = {
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "efa": "EFA",
    "ethernet": "Ethernet",
    "none": "no network",
    "unknown": "an unknown network",
}

CHECKS: dict[str, Check] = {}
"""Checks by the name that `topology_rules.yaml` uses."""


def check(function: Check) -> Check:
    """Register a check under its own name."""
    CHECKS[function.__name__] = function
    return function


def common_values(job: TopologyInput) -> dict[str, object]:
    """What every template may use."""
    return {
        "backend": job.backend,
        "ep": job.ep,
        "group": job.group,
        "inside": job.inside,
        "domain": job.domain,
        "domains": job.domains,
        "node_ranks": job.node_ranks,
        "gpus_per_node": job.site.gpus_per_node,
        "gpu": job.site.gpu_name or (job.site.gpu or "this GPU").upper(),
        "fabric": FABRIC_NAMES[job.site.fabric],
        "variable": job.facts.domain_variable,
        "fabric_variable": job.facts.fabric_variable,
        "nvshmem": job.versions.get("nvshmem") or "of unknown version",
        "nccl": job.versions.get("nccl") or "of unknown version",
    }
