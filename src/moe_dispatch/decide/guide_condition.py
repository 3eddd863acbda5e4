"""When a piece of guidance holds: the situation that rules look at, and the matcher of their conditions."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.megatron.version import parse_release
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

GateStatus = Literal["available", "unavailable", "unsupported", "not_gated"]
Stage = Literal["bring-up", "profile", "tuned"]
STAGES: tuple[Stage, ...] = ("bring-up", "profile", "tuned")
UNKNOWN_GPU = "unknown"

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What rules look at.

    Fields:
        domains: domains that one expert-parallel group spans; None when unknown.
        gate: None when the backend was not gated here.
        stage: how far the job has come; None when it is not said, and rules about one stage then do not hold.
        memory_tight: the user says that memory is short.
        core_version: Megatron-Core release; None when it does not matter.
    """

    workload: Workload
    site: Site
    domains: int | None
    spec: BackendSpec
    gate: GateResult | None
    stage: Stage | None = None
    memory_tight: bool = False
    core_version: str | None = None

    @property
    def group(self) -> int:
        """Ranks that exchange tokens: EP x expert TP."""
        return self.workload.layout.ep * self.workload.layout.expert_tp

    @property
    def inside(self) -> int | None:
        """Members of one group in each domain; None when unknown, or when domains do not hold equally many."""
        inside = self.site.ranks_per_domain(self.group)
        return None if inside is None or self.group % inside else inside

    @property
    def capability(self) -> int | None:
        """Major compute capability of the site's GPU; None without one that the catalogue knows."""
        entry = load_hardware().get(self.site.gpu or "")
        major = entry.capability.partition(".")[0] if entry is not None else ""
        return int(major) if major.isdecimal() else None

    @property
    def platforms(self) -> tuple[str, ...]:
        """Device types on which the backend moves tokens."""
        return self.spec.platforms or self.spec.capabilities.devices

    @property
    def gate_status(self) -> GateStatus:
        """How the backend stands here."""
        if not self.platform_supported or not self.payload_supported:
            return "unsupported"
        if self.gate is None:
            return "not_gated"
        return "available" if self.gate.available else "unavailable"

    @property
    def platform_supported(self) -> bool:
        """Whether the backend serves this site's device."""
        return self.site.device in self.platforms

    @property
    def payload_supported(self) -> bool:
        """Whether it carries the workload's rows; an fp8 workload may still dispatch bf16 rows."""
        dtype = _DTYPES.get(self.workload.precision)
        return dtype is None or dtype in self.spec.capabilities.dtypes

    def fill(self, text: str) -> str:
        """A text of the guide with the values of this situation."""
        layout, reason = self.workload.layout, self.gate.reason if self.gate is not None else ""
        return text.format(
            backend=self.spec.name,
            device=self.site.device,
            ep=layout.ep,
            tp=layout.tp,
            cp=layout.cp,
            pp=layout.pp,
            vpp=layout.vpp,
            group=self.group,
            inside=self.inside or "the group's ranks in one NVLink domain",
            gpu=self.site.gpu.upper() if self.site.gpu else "an unknown GPU",
            fabric=self.site.fabric,
            model=self.workload.model.name,
            platforms=" and ".join(self.platforms),
            dtypes=", ".join(self.spec.capabilities.dtypes),
            precision=self.workload.precision,
            gate_reason=reason or f"{self.spec.name} did not pass its gate",
        )


class Condition(BaseModel):
    """When a rule holds: every field that is given must.

    Fields:
        gpu: keys of the hardware catalogue; `unknown` matches a GPU that is not in it.
        capability_min, capability_max: bounds of the major compute capability, included.
        nodes_max: nodes of the site, included.
        nvlink: whether NVLink ends at the node or joins several nodes; neither holds when that is unknown.
        ep_min, ep_max: bounds of the EP size, included.
        group_max: bound of the ranks that exchange tokens (EP x expert TP), included.
        domains: whether one group lies in one domain or spans several; neither holds when that is unknown.
        model: name patterns with `*`.
        stage, precision, memory: what the user says of the job.
        core_min, core_max: bounds of the Megatron-Core release, included; neither holds when that is unknown.
        tp_or_cp, pp_min, pp_max, vpp_min, vpp_max: the layout of attention and of the pipeline.
        shared_experts, mtp_min: of the model.
        gate: `failed`, or `unknown` when the backend was not gated.
        platform, payload, adapter, megatron, flex, experimental, kind: properties of the backend.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: tuple[str, ...] | None = None
    gpu: tuple[str, ...] | None = None
    capability_min: int | None = None
    capability_max: int | None = None
    nodes_max: int | None = None
    nvlink: Literal["one_node", "several_nodes"] | None = None
    fabric: tuple[str, ...] | None = None
    ep_min: int | None = None
    ep_max: int | None = None
    group_max: int | None = None
    domains: Literal["one", "several"] | None = None
    model: tuple[str, ...] | None = None
    stage: tuple[Stage, ...] | None = None
    precision: tuple[str, ...] | None = None
    memory: Literal["tight"] | None = None
    core_min: str | None = None
    core_max: str | None = None
    tp_or_cp: bool | None = None
    pp_min: int | None = None
    pp_max: int | None = None
    vpp_min: int | None = None
    vpp_max: int | None = None
    shared_experts: bool | None = None
    mtp_min: int | None = None
    gate: Literal["failed", "unknown"] | None = None
    platform: Literal["unsupported"] | None = None
    payload: Literal["unsupported"] | None = None
    adapter: Literal["missing"] | None = None
    megatron: Literal["missing"] | None = None
    flex: bool | None = None
    experimental: bool | None = None
    kind: Literal["builtin", "package"] | None = None

    def holds(self, at: Situation) -> bool:
        """Whether every given condition holds."""
        return self._place(at) and self._job(at) and self._layout(at) and self._release(at) and self._backend(at)

    def failing(self, at: Situation) -> tuple[str, ...]:
        """Given conditions that do not hold."""
        given = self.model_dump(exclude_none=True)
        return tuple(name for name, value in given.items() if not Condition.model_validate({name: value}).holds(at))

    def _place(self, at: Situation) -> bool:
        site = at.site
        gpu = site.gpu or (UNKNOWN_GPU if site.device == "cuda" else None)
        reach = None if site.nvlink_domain is None else "several_nodes" if site.is_multi_node_nvlink else "one_node"
        return (
            (self.device is None or site.device in self.device)
            and (self.gpu is None or gpu in self.gpu)
            and (self.fabric is None or site.fabric in self.fabric)
            and (self.nodes_max is None or site.nodes <= self.nodes_max)
            and (self.nvlink is None or reach == self.nvlink)
            and (self.capability_min is None or (at.capability or 0) >= self.capability_min)
            and (self.capability_max is None or 0 < (at.capability or 0) <= self.capability_max)
        )

    def _job(self, at: Situation) -> bool:
        ep, model = at.workload.layout.ep, at.workload.model
        spread = None if at.domains is None else ("one" if at.domains == 1 else "several")
        name = model.name.lower()
        return (
            (self.ep_min is None or ep >= self.ep_min)
            and (self.ep_max is None or ep <= self.ep_max)
            and (self.group_max is None or at.group <= self.group_max)
            and (self.domains is None or spread == self.domains)
            and (self.model is None or any(fnmatchcase(name, pattern) for pattern in self.model))
            and (self.stage is None or at.stage in self.stage)
            and (self.precision is None or at.workload.precision in self.precision)
            and (self.memory is None or at.memory_tight)
            and (self.shared_experts is None or bool(model.shared_expert_ffn_hidden) == self.shared_experts)
            and (self.mtp_min is None or model.mtp_layers >= self.mtp_min)
        )

    def _layout(self, at: Situation) -> bool:
        layout = at.workload.layout
        return (
            (self.tp_or_cp is None or (layout.tp > 1 or layout.cp > 1) == self.tp_or_cp)
            and (self.pp_min is None or layout.pp >= self.pp_min)
            and (self.pp_max is None or layout.pp <= self.pp_max)
            and (self.vpp_min is None or layout.vpp >= self.vpp_min)
            and (self.vpp_max is None or layout.vpp <= self.vpp_max)
        )

    def _release(self, at: Situation) -> bool:
        if self.core_min is None and self.core_max is None:
            return True
        if at.core_version is None:
            return False
        release = parse_release(at.core_version)
        above = self.core_min is None or release >= parse_release(self.core_min)
        return above and (self.core_max is None or release <= parse_release(self.core_max))

    def _backend(self, at: Situation) -> bool:
        gate = "unknown" if at.gate is None else ("passed" if at.gate.available else "failed")
        mapping = at.spec.megatron
        return (
            (self.gate is None or gate == self.gate)
            and (self.platform is None or not at.platform_supported)
            and (self.payload is None or not at.payload_supported)
            and (self.adapter is None or at.spec.target is None)
            and (self.megatron is None or mapping is None)
            and (self.flex is None or (mapping is not None and mapping.flex_backend is not None) == self.flex)
            and (self.experimental is None or at.spec.experimental == self.experimental)
            and (self.kind is None or at.spec.kind == self.kind)
        )
