"""What the orchestrations are asked to do, free of any command-line library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moe_dispatch.core.errors import UsageError

NO_SKEW = "none"


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """What to measure and where.

    Fields:
        workload: catalogue name, path of a config.json or of a workload YAML.
        sizes: fields over those of the workload (`ep`, `tp`, ..., `seq_length`, `precision`, `routing`); None is unset.
        skew: a second routing measured in the same launches; `none` leaves it out.
        nproc: ranks started on this node; None means EP divided by the nodes.
        nnodes, node_rank, rdzv_endpoint: several nodes run the same request; node 0 decides.
        master_port: port of the ranks' own rendezvous; None picks a free one.
        ranks_per_domain: consecutive ranks in one NVLink domain; None means those of one node.
        dispatchers: only these, beside the baseline; empty means all candidates. A name may carry knobs: `x:k=v,k=v`.
        launches: sets of processes in the deciding stage.
        budget_s: seconds that the measurements may take, about.
        store: record directory; None means `out/store`.
        out: directory of the report, the verdict and the configuration.
    """

    workload: str
    sizes: Mapping[str, int | str | None] = field(default_factory=dict)
    skew: str = "zipf:1.0"
    nproc: int | None = None
    nnodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str | None = None
    master_port: int | None = None
    ranks_per_domain: int | None = None
    dispatchers: tuple[str, ...] = ()
    launches: int = 5
    budget_s: float = 150.0
    store: str | None = None
    out: str = "moe-dispatch-out"

    def __post_init__(self) -> None:
        if self.launches < 1:
            raise UsageError(f"--launches {self.launches} must be at least 1", "a winner needs five launches")
        if not 0 < self.budget_s < math.inf:
            raise UsageError(f"--budget {self.budget_s} must be a number of seconds above 0")
        for name, value in (
            ("--nnodes", self.nnodes),
            ("--nproc", self.nproc),
            ("--ranks-per-domain", self.ranks_per_domain),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{name} {value} must be at least 1")
        if self.node_rank < 0:
            raise UsageError(f"--node-rank {self.node_rank} must be at least 0", "count nodes from 0")
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise UsageError(f"--master-port {self.master_port} must be 1 to 65535", "leave it out for a free one")
        if self.nnodes > 1 and self.rdzv_endpoint is None:
            raise UsageError(
                f"--nnodes {self.nnodes} needs --rdzv-endpoint HOST:PORT",
                "give an address of node 0 that all nodes reach, with a free port, the same on every node",
            )

    @property
    def store_path(self) -> Path:
        """Directory of the records."""
        return Path(self.store) if self.store else Path(self.out) / "store"

    @property
    def leads(self) -> bool:
        """Whether this node decides (node 0, or the only one)."""
        return self.node_rank == 0


@dataclass(frozen=True, kw_only=True)
class SelectRequest:
    """A `select`.

    Fields:
        threshold: smallest relative difference that matters.
        attest: unknown contract fields that the user declares equal.
        resume: measure only what the store's newest session lacks, on the same stack.
        site, nodes: a declared site; if it is not this machine, nothing is run.
        core_version: Megatron-Core release to write configuration for.
    """

    measure: MeasureRequest
    threshold: float = 0.02
    attest: tuple[str, ...] = ()
    resume: bool = False
    site: str | None = None
    nodes: int = 1
    core_version: str = "0.19"

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise UsageError(f"--threshold {self.threshold} must be at least 0 and below 1", "0.02 means two percent")
        if self.resume and self.measure.store is None:
            raise UsageError("resume needs the store of the run to continue")
