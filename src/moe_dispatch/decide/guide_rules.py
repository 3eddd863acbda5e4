"""Rules of the guide as data: their schema, the small matcher of their conditions, and the facts it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Literal, Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.site.model import Site


class _Layout(Protocol):
    @property
    def ep(self) -> int: ...
    @property
    def expert_tp(self) -> int: ...


class _Model(Protocol):
    @property
    def name(self) -> str: ...


class GuideWorkload(Protocol):
    """What the guide looks at in a workload."""

    @property
    def layout(self) -> _Layout:
        """Parallel layout: `ep` and `expert_tp`."""

    @property
    def model(self) -> _Model:
        """Model shape: its `name`."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What conditions are matched against; None means unknown."""

    device: str
    vendor: str | None
    gpu: str | None
    fabric: str | None
    family: str
    ep: int
    group: int
    domains: int | None


class Condition(BaseModel):
    """Conditions of a rule; all that are given must hold, and one that needs an unknown fact does not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: tuple[str, ...] | None = None
    vendor: tuple[str, ...] | None = None
    gpu: tuple[str, ...] | None = None
    fabric: tuple[str, ...] | None = None
    family: tuple[str, ...] | None = None
    ep_min: int | None = None
    ep_max: int | None = None
    group_max: int | None = None
    group_not_in: tuple[int, ...] | None = None
    domains_min: int | None = None
    domains_max: int | None = None
    gpu_known: bool | None = None

    def holds(self, facts: Facts) -> bool:
        """Whether every given condition holds."""
        named = ((self.device, facts.device), (self.vendor, facts.vendor), (self.gpu, facts.gpu))
        if any(
            allowed is not None and value not in allowed for allowed, value in (*named, (self.fabric, facts.fabric))
        ):
            return False
        if self.family is not None and not facts.family.startswith(self.family):
            return False
        if not _within(facts.ep, self.ep_min, self.ep_max) or not _within(facts.group, None, self.group_max):
            return False
        if not _within(facts.domains, self.domains_min, self.domains_max):
            return False
        if self.group_not_in is not None and facts.group in self.group_not_in:
            return False
        return self.gpu_known is None or self.gpu_known == (facts.gpu is not None)


class Rule(BaseModel):
    """One dated rule.

    Fields:
        effect: `order` moves `backends` to the front, `exclude` takes them out, `note` only says something.
        backends: empty for all (notes only).
        refuted_by: published cases in which following the rule would have been wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    dated: date
    when: Condition = Condition()
    effect: Literal["order", "exclude", "note"]
    backends: tuple[str, ...]
    text: str
    sources: tuple[str, ...] = Field(min_length=1)
    refuted_by: tuple[str, ...] = ()


@cache
def load_rules() -> tuple[Rule, ...]:
    """The shipped rules, in the order in which they apply."""
    text = resources.files("moe_dispatch.decide").joinpath("guide_rules.yaml").read_text(encoding="utf-8")
    return tuple(Rule.model_validate(entry) for entry in yaml.safe_load(text))


def facts_of(workload: GuideWorkload, site: Site) -> Facts:
    """The facts of a workload on a site; on a CPU site a domain is a host."""
    ep = workload.layout.ep
    hardware = load_hardware().get(site.gpu) if site.gpu else None
    if site.device == "cpu":
        domains: int | None = min(site.nodes, ep)
    elif site.nodes == 1 and site.nvlink_domain is None and site.gpus_per_node == 1:
        domains = 1
    else:
        domains = site.domains(ep)
    return Facts(
        device=site.device,
        vendor=hardware.vendor if hardware else None,
        gpu=site.gpu,
        fabric=None if site.fabric == "unknown" else site.fabric,
        family=workload.model.name.lower(),
        ep=ep,
        group=ep * workload.layout.expert_tp,
        domains=domains,
    )


def _within(value: int | None, low: int | None, high: int | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)
