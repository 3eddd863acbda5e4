"""Everything a measurement needs before it starts: workload, site, stack, backends, gates and candidates."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moe_dispatch.bench.control import follow
from moe_dispatch.bench.plan import Rendezvous
from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import MissingDependency, UsageError
from moe_dispatch.core.finding import Finding
from moe_dispatch.core.registry import load_backends_with_findings
from moe_dispatch.flow.choices import parse_choice
from moe_dispatch.flow.events import Listener
from moe_dispatch.flow.request import NO_SKEW, MeasureRequest
from moe_dispatch.flow.stages import BASELINE, dtype_of
from moe_dispatch.site.gate import gate_all
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site
from moe_dispatch.site.probe import probe
from moe_dispatch.site.stack import stack_fingerprint
from moe_dispatch.workload.routing import RoutingSpec, generate
from moe_dispatch.workload.workload import Workload, load_workload


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is known before anything is measured.

    Fields:
        routings: the workload's, then the skewed one if there is one.
        nproc: ranks started on this node; world: ranks of the EP group on all nodes.
        chosen: dispatchers that the user restricts the run to, with fixed knobs; empty means no restriction.
    """

    workload: Workload
    routings: tuple[str, ...]
    site: Site
    device: Literal["cpu", "cuda"]
    stack: Mapping[str, str | None]
    specs: Mapping[str, BackendSpec]
    gates: Mapping[str, GateResult]
    findings: tuple[Finding, ...]
    nproc: int
    world: int
    rendezvous: Rendezvous | None
    chosen: Mapping[str, Choice]
    ranks_per_domain: int | None

    @property
    def one_domain(self) -> bool:
        """Whether all ranks of the group share a domain."""
        return (self.ranks_per_domain or self.nproc) == self.world


def load(request: MeasureRequest) -> Workload:
    """The workload of a request.

    Raises:
        WorkloadError: unknown, impossible, or malformed.
    """
    return load_workload(request.workload, overrides={k: v for k, v in request.sizes.items() if v is not None})


def rendezvous_of(request: MeasureRequest) -> Rendezvous | None:
    """How several nodes meet; None on a single one.

    Raises:
        UsageError: malformed endpoint or node rank.
    """
    if request.nnodes == 1 or request.rdzv_endpoint is None:
        if request.node_rank != 0:
            raise UsageError(f"--node-rank {request.node_rank} needs --nnodes", "a single node has rank 0")
        return None
    return Rendezvous(
        nnodes=request.nnodes,
        node_rank=request.node_rank,
        endpoint=request.rdzv_endpoint,
        master_port=request.master_port,
    )


def ranks_per_node(request: MeasureRequest, world: int) -> int:
    """Ranks started on this node.

    Raises:
        UsageError: nodes x ranks is not the EP size.
    """
    nproc = request.nproc or world // request.nnodes
    if nproc < 1 or nproc * request.nnodes != world:
        raise UsageError(
            f"EP={world} needs {world} ranks; {request.nnodes} node(s) with {nproc} each give {request.nnodes * nproc}",
            "measure with nnodes x nproc = EP, or choose a smaller --ep for this machine",
        )
    return nproc


def check_routing(routing: str, workload: Workload) -> None:
    """Choose for one token, so that a trace that does not fit the model is refused before ranks are started.

    Raises:
        WorkloadError: unreadable, damaged, or of another model.
    """
    model, router = workload.model, workload.model.router
    spec = RoutingSpec.parse(routing)
    generate(spec, 1, model.num_experts, model.topk, 0, 0, router.num_groups, router.group_topk)


def prepare(request: MeasureRequest, listener: Listener) -> Setup:
    """Load, probe and gate. Starts child processes for the gate, measures nothing.

    Raises:
        WorkloadError, UsageError: the request is impossible.
        UnsupportedByBackend: the precision cannot be measured.
        MissingDependency: torch is absent or broken.
    """
    workload = load(request)
    dtype_of(workload)
    world = workload.layout.ep
    nproc = ranks_per_node(request, world)
    rendezvous = rendezvous_of(request)
    routings = [workload.routing]
    if request.skew != NO_SKEW:
        routings.append(request.skew)
    if len({RoutingSpec.parse(routing).canonical for routing in routings}) != len(routings):
        raise UsageError(f"--skew {request.skew} is the routing itself", "name another one, or --skew none")
    for routing in routings:
        check_routing(routing, workload)
    chosen = {choice.dispatcher: choice for choice in map(parse_choice, request.dispatchers)}
    listener.note("probing this machine and its software")
    site = probe(request.nnodes)
    specs, findings = load_backends_with_findings()
    listener.note(f"gating {len(specs)} backends")
    gates = gate_all(specs.values(), site=site)
    baseline = gates[BASELINE]
    if not baseline.available:
        raise MissingDependency(
            f"nothing can be measured here, not even the baseline {BASELINE}: {baseline.reason}",
            "install a torch that imports: pip install 'moe-dispatch[torch]'; see `moe-dispatch backends --gate`",
        )
    return Setup(
        workload=workload,
        routings=tuple(routings),
        site=site,
        device=site.device,
        stack=stack_fingerprint(),
        specs=specs,
        gates=gates,
        findings=findings,
        nproc=nproc,
        world=world,
        rendezvous=rendezvous,
        chosen=chosen,
        ranks_per_domain=request.ranks_per_domain,
    )


def follow_leader(request: MeasureRequest, listener: Listener) -> str:
    """Run what node 0 orders until it is done; returns the text it publishes at the end.

    Raises:
        LaunchError: node 0 was never there, went away, or stopped with an error.
    """
    rendezvous = rendezvous_of(request)
    if rendezvous is None:
        raise UsageError("a following node needs --nnodes and --rdzv-endpoint")
    nproc = ranks_per_node(request, load(request).layout.ep)
    listener.note(f"following node 0 at {rendezvous.endpoint}")
    with tempfile.TemporaryDirectory(prefix="moe-dispatch-") as folder:
        return follow(
            rendezvous,
            nproc,
            Path(folder),
            lambda plan: listener.note(f"{plan.stage}: launch {plan.launch + 1}, {len(plan.arms)} arms"),
        )
