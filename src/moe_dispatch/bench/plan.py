"""What one launch measures, as data: written to a file by the launcher, read by every rank. Imports no torch.

The order of visits and the fields of a Contract are decided here, so that launcher, ranks and records agree.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from moe_dispatch.bench.train_plan import TRAINING_LEVEL, TrainPlan
from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.record import Contract, Model
from moe_dispatch.workload.model import ModelShape
from moe_dispatch.workload.routing import RoutingSpec
from moe_dispatch.workload.trainable import canonical_routing

Level = Literal["exchange", "layer", "train"]
PHASES = ("forward", "backward", "total")


class Rendezvous(Model):
    """Where several nodes meet. All nodes give the same endpoint; node 0 listens there.

    Fields:
        nnodes, node_rank: how many nodes, and which one this is.
        endpoint: `HOST:PORT` of the control store on node 0.
        master_port: port of the ranks' own rendezvous on node 0; None lets node 0 pick a free one for every launch.
        interface: network interface for gloo; None means the one that reaches HOST.
        arrive_timeout_s: how long to wait for the other nodes.
    """

    nnodes: int = Field(ge=1)
    node_rank: int = Field(ge=0)
    endpoint: str
    master_port: int | None = None
    interface: str | None = None
    arrive_timeout_s: float = 120.0

    @model_validator(mode="after")
    def _consistent(self) -> Rendezvous:
        if self.node_rank >= self.nnodes:
            raise UsageError(f"node rank {self.node_rank} does not exist among {self.nnodes} nodes", "count from 0")
        host, _, port = self.endpoint.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"rendezvous endpoint {self.endpoint!r} is not HOST:PORT", "for example 10.0.0.1:29400")
        return self

    @property
    def host(self) -> str:
        """Host part of the endpoint."""
        return self.endpoint.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port part of the endpoint."""
        return int(self.endpoint.rpartition(":")[2])


class ArmPlan(Model):
    """One dispatcher under test.

    Fields:
        choice: name and knobs.
        target: `module:Class` of the Dispatcher subclass.
        labels: travel with this arm's records (`untuned`, ...).
    """

    choice: Choice
    target: str
    labels: tuple[str, ...] = ()


class BenchPlan(Model):
    """One launch.

    Fields:
        arms: the first is the baseline; token fitting times it.
        world: ranks of the expert-parallel group, all nodes together.
        tokens_per_rank: tokens the workload asks for on every rank.
        fitted_tokens: tokens settled by an earlier launch of the same stage; None fits them to `time_budget_s` here.
        min_tokens: fitting never goes below this (or below `tokens_per_rank`, if that is smaller).
        routings: routing specifications as `RoutingSpec.parse` takes them, in training also `natural`; each is a
            contract of its own.
        train: of level `train`, and of no other.
        ranks_per_domain: consecutive ranks in one NVLink or host domain; None means the ranks of one node.
        visits, iterations: passes over the arms, and timed iterations of an arm in each.
        time_budget_s: seconds the timed part of this launch may take on a CPU; None runs all tokens.
        arm_timeout_s: longest time without progress before the launch is stopped as hanging.
        workload, site, stack: contract fields the caller knows; the ranks add what only they can see.
    """

    session: str
    stage: str
    launch: int = Field(ge=0)
    level: Level
    arms: tuple[ArmPlan, ...] = Field(min_length=1)
    model: ModelShape
    world: int = Field(ge=1)
    tokens_per_rank: int = Field(ge=1)
    fitted_tokens: int | None = None
    min_tokens: int = 256
    routings: tuple[str, ...] = Field(min_length=1)
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    ranks_per_domain: int | None = None
    warmup: int = Field(default=2, ge=1)
    visits: int = Field(default=4, ge=1)
    iterations: int = Field(default=3, ge=1)
    seed: int = 0
    time_budget_s: float | None = None
    arm_timeout_s: float = 120.0
    start_timeout_s: float = 180.0
    train: TrainPlan | None = None
    workload: dict[str, Any] = Field(default_factory=dict)
    site: dict[str, Any] = Field(default_factory=dict)
    stack: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> BenchPlan:
        if (self.level == "train") != (self.train is not None):
            raise UsageError(f"a plan of level {self.level} cannot have train={self.train}")
        if self.model.num_experts % self.world:
            raise UsageError(
                f"{self.model.num_experts} experts cannot be split over {self.world} expert-parallel ranks",
                "choose an EP size that divides the number of experts",
            )
        labels = [arm.choice.label for arm in self.arms]
        if len(set(labels)) < len(labels):
            raise UsageError(f"an arm is named twice: {', '.join(labels)}", "give each dispatcher with its knobs once")
        if self.ranks_per_domain is not None and (self.ranks_per_domain < 1 or self.world % self.ranks_per_domain):
            raise UsageError(
                f"ranks_per_domain={self.ranks_per_domain} does not divide the {self.world} ranks",
                "give a divisor of the number of ranks, or leave it out",
            )
        return self

    @property
    def planned_iterations(self) -> int:
        """Iterations of one arm under one routing that are reported; in training all steps."""
        return self.train.steps if self.train is not None else self.visits * self.iterations

    @property
    def contract_level(self) -> str:
        """Level as contracts name it."""
        return TRAINING_LEVEL if self.train is not None else self.level

    def canonical(self, routing: str) -> str:
        """One spelling of a routing for contracts."""
        return canonical_routing(routing) if self.train is not None else RoutingSpec.parse(routing).canonical

    def visit_order(self, visit: int) -> tuple[int, ...]:
        """Arm indices in the order of one visit: A B C, then C B A, and so on; the start rotates with the launch."""
        count = len(self.arms)
        forward = tuple((self.launch + step) % count for step in range(count))
        return forward if visit % 2 == 0 else forward[::-1]

    def contract(self, routing: str, tokens: int | None, site: dict[str, Any], stack: dict[str, Any]) -> Contract:
        """The contract of one routing.

        Args:
            tokens: tokens per rank that were run; None when the launch failed before they were settled.
            site, stack: what the ranks saw (device, transport, versions); what the caller knows wins.
        """
        shape = self.model
        workload = {
            **self.workload,
            "model": shape.name,
            "hidden": shape.hidden,
            "dispatch_width": shape.dispatch_width,
            "num_experts": shape.num_experts,
            "topk": shape.topk,
            "moe_ffn_hidden": shape.moe_ffn_hidden,
            "shared_expert_ffn_hidden": shape.shared_expert_ffn_hidden,
            "dtype": self.dtype,
            "tokens_per_rank": tokens,
            "tokens_per_rank_requested": self.tokens_per_rank,
            "routing": routing,
        }
        measure: dict[str, Any] = {
            "level": self.level,
            "phases": list(PHASES),
            "reduction": "max_over_ranks",
            "warmup": self.warmup,
            "visits": self.visits,
            "iterations": self.iterations,
            "seed": self.seed,
        }
        if self.train is not None:
            workload |= self.train.workload_fields()
            measure = self.train.measure_fields(self.seed)
        return Contract(
            workload=workload, measure=measure, site=_merge(site, self.site), stack=_merge(stack, self.stack)
        )


def _merge(seen: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Both, the given values first; a given unknown (None) does not hide what was seen."""
    return {**given, **seen, **{key: value for key, value in given.items() if value is not None}}
