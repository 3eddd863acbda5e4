"""The rules of the selection guide (`guide_rules.yaml`) as typed data, and the matcher of their conditions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

BASELINE = "alltoall"
GateStatus = Literal["available", "unavailable", "unsupported", "not_gated"]
UNKNOWN_GPU = "unknown"

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What rules look at.

    Fields:
        domains: domains that one expert-parallel group spans; None when unknown.
        gate: None when the backend was not gated here.
    """

    workload: Workload
    site: Site
    domains: int | None
    spec: BackendSpec
    gate: GateResult | None

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
        """A rule's text with the values of this situation."""
        reason = self.gate.reason if self.gate is not None else ""
        return text.format(
            backend=self.spec.name,
            device=self.site.device,
            ep=self.workload.layout.ep,
            gpu=(self.site.gpu or "an unknown GPU").upper(),
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
        ep_min, ep_max: bounds of the EP size, included.
        domains: whether one group lies in one domain or spans several; neither holds when that is unknown.
        model: name patterns with `*`.
        gate: `failed`, or `unknown` when the backend was not gated.
        platform, payload, adapter, megatron, experimental, kind: properties of the backend.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: tuple[str, ...] | None = None
    gpu: tuple[str, ...] | None = None
    fabric: tuple[str, ...] | None = None
    ep_min: int | None = None
    ep_max: int | None = None
    domains: Literal["one", "several"] | None = None
    model: tuple[str, ...] | None = None
    gate: Literal["failed", "unknown"] | None = None
    platform: Literal["unsupported"] | None = None
    payload: Literal["unsupported"] | None = None
    adapter: Literal["missing"] | None = None
    megatron: Literal["missing"] | None = None
    experimental: bool | None = None
    kind: Literal["builtin", "package"] | None = None

    def holds(self, at: Situation) -> bool:
        """Whether every given condition holds."""
        return self._place(at) and self._job(at) and self._backend(at)

    def _place(self, at: Situation) -> bool:
        gpu = at.site.gpu or (UNKNOWN_GPU if at.site.device == "cuda" else None)
        return (
            (self.device is None or at.site.device in self.device)
            and (self.gpu is None or gpu in self.gpu)
            and (self.fabric is None or at.site.fabric in self.fabric)
        )

    def _job(self, at: Situation) -> bool:
        ep = at.workload.layout.ep
        spread = None if at.domains is None else ("one" if at.domains == 1 else "several")
        name = at.workload.model.name.lower()
        return (
            (self.ep_min is None or ep >= self.ep_min)
            and (self.ep_max is None or ep <= self.ep_max)
            and (self.domains is None or spread == self.domains)
            and (self.model is None or any(fnmatchcase(name, pattern) for pattern in self.model))
        )

    def _backend(self, at: Situation) -> bool:
        gate = "unknown" if at.gate is None else ("passed" if at.gate.available else "failed")
        return (
            (self.gate is None or gate == self.gate)
            and (self.platform is None or not at.platform_supported)
            and (self.payload is None or not at.payload_supported)
            and (self.adapter is None or at.spec.target is None)
            and (self.megatron is None or at.spec.megatron is None)
            and (self.experimental is None or at.spec.experimental == self.experimental)
            and (self.kind is None or at.spec.kind == self.kind)
        )


class Rule(BaseModel):
    """One dated piece of guidance.

    Fields:
        date: of the source it rests on.
        backends: what an exclude or note rule speaks about; empty means every backend.
        order: for an order rule, names from first to last; backends that are not named follow.
        drop_sweep: knobs that are not worth sweeping where the rule holds.
        text: the reason, for a person.
        sources: `repo@commit:path` or what else it rests on.
        refuted_by: the observation that would make the rule wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    date: date
    when: Condition
    backends: tuple[str, ...] = ()
    effect: Literal["order", "exclude", "note"]
    order: tuple[str, ...] = ()
    drop_sweep: tuple[str, ...] = ()
    text: str = Field(min_length=1)
    sources: tuple[str, ...] = Field(min_length=1)
    refuted_by: str = Field(min_length=1)

    @model_validator(mode="after")
    def _shape(self) -> Rule:
        if (self.effect == "order") != bool(self.order):
            raise ValueError(f"rule {self.id}: `order` belongs to order rules, and they need it")
        if BASELINE in self.order:
            raise ValueError(f"rule {self.id}: {BASELINE} is the baseline and always first")
        return self

    def speaks_of(self, backend: str) -> bool:
        """Whether the rule is about this backend."""
        if self.effect == "order":
            return backend in self.order
        if self.effect == "exclude" and backend == BASELINE:
            return False
        return not self.backends or backend in self.backends


@cache
def load_rules() -> tuple[Rule, ...]:
    """The rules in their order of weight."""
    import yaml

    text = resources.files("moe_dispatch.decide").joinpath("guide_rules.yaml").read_text(encoding="utf-8")
    return tuple(Rule.model_validate(raw) for raw in yaml.safe_load(text)["rules"])
