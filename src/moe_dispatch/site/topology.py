"""Topology rules: does an EP group fit the NVLink domain, the nodes and the network that it is given?

Pure functions of a `TopologyInput`, shared by everything that knows a job: a probe of running ranks, a configuration
that is linted, one that is written. What the rules say and where they come from is in `topology_rules.yaml`; what each
backend demands in `exchange.yaml`.
"""

from __future__ import annotations

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.site import topology_domain, topology_network, topology_placement
from moe_dispatch.site.topology_check import CHECKS, common_values
from moe_dispatch.site.topology_input import Framework, RankPlace, TopologyInput
from moe_dispatch.site.topology_rules import TopologyRule, load_topology_rules

__all__ = [
    "Framework",
    "RankPlace",
    "TopologyInput",
    "TopologyRule",
    "check_topology",
    "fabric_handle_failure",
    "load_topology_rules",
]

CHECK_MODULES = (topology_domain, topology_network, topology_placement)
"""Importing them registers their checks."""

_ORDER = list(Severity)


def check_topology(job: TopologyInput) -> list[Finding]:
    """Every rule that speaks about this job, errors first.

    Never raises for strange values: what is unknown (a domain, a version, a placement) brings no finding.
    """
    common = common_values(job)
    found = [
        rule.finding({**common, **hit.values}, severity=hit.severity, advice=hit.advice)
        for rule in load_topology_rules().values()
        if rule.check is not None and rule.speaks_of(job.backend, job.site.gpu, job.versions)
        for hit in CHECKS[rule.check](job)
    ]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def fabric_handle_failure(job: TopologyInput) -> Finding:
    """Why `cuMemCreate` refused fabric handles (`operation not permitted`): another answer on HGX and on NVL72."""
    rule = "imex-channel-missing" if job.site.is_multi_node_nvlink else "fabric-handles-not-on-hgx"
    return load_topology_rules()[rule].finding(common_values(job))
