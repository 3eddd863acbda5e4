"""Closest published evidence to a workload, by a distance whose components are named and shown.

distance = sum of weight x difference over model, hardware, EP, GPUs, precision, micro-batch, sequence, routing, fabric,
how the dispatcher is known, and age. Differences and weights are described in `data/distance.yaml`. What the workload
leaves open is not counted; what a row does not state counts as `unknown` and is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from math import log2
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from moe_dispatch.evidence.published.files import data_file
from moe_dispatch.evidence.published.rows import Settings

if TYPE_CHECKING:
    from moe_dispatch.site.model import Site
    from moe_dispatch.workload.workload import Workload

DAYS_OF_A_YEAR = 365.25

Component = tuple[Any, Any, Callable[..., float]]
"""Our value, theirs, and the difference of two that are known."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceQuery:
    """What published rows are compared with; None leaves a component open.

    Fields:
        model: catalogue name; hardware: catalogue key; precision, routing: in the words of `rows.Settings`.
        fabric: between nodes; `unknown` is compared too, because a row from a particular fabric may not carry over.
    """

    model: str | None = None
    hardware: str | None = None
    ep: int | None = None
    gpus: int | None = None
    precision: str | None = None
    micro_batch: int | None = None
    seq_length: int | None = None
    routing: str | None = None
    fabric: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One component of a distance: the two values (`ours` empty where only theirs has a meaning) and what it adds."""

    component: str
    ours: str
    theirs: str
    adds: float

    @property
    def text(self) -> str:
        """For a person: `ep 64 there, 16 here (+2)`, or `dispatcher inferred (+0.5)`."""
        name = self.component.replace("_", " ")
        here = f" there, {self.ours} here" if self.ours else ""
        return f"{name} {self.theirs}{here} (+{self.adds:.2g})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Match(Generic[S]):
    """A row, how far it is, and why."""

    row: S
    distance: float
    differences: tuple[Difference, ...]


def query_of(workload: Workload, site: Site | None = None, precision: str | None = None) -> EvidenceQuery:
    """The query that a workload on a site stands for.

    Args:
        site: gives hardware, GPU count and fabric; without it these stay open.
        precision: of training, where it is known more exactly than the dispatched rows' (`fp8_mx`).
    """
    return EvidenceQuery(
        model=workload.model.name,
        hardware=site.gpu if site else None,
        ep=workload.layout.ep,
        gpus=site.ranks if site else None,
        precision=precision or workload.precision,
        micro_batch=workload.micro_batch,
        seq_length=workload.seq_length,
        routing="force_balanced" if workload.routing_spec.kind == "force_balanced" else "dropless",
        fabric=None if site is None or site.fabric == "none" else site.fabric,
    )


def closest(query: EvidenceQuery, rows: Iterable[S], limit: int | None = None) -> list[Match[S]]:
    """Rows by distance, nearest first; rows that are equally far keep their order.

    Args:
        limit: how many; None for all.
    """
    kept = list(rows)
    newest = max((row.date for row in kept if row.date), default="")
    matches = [_match(query, row, newest) for row in kept]
    return sorted(matches, key=lambda match: match.distance)[:limit]


def _match(query: EvidenceQuery, row: S, newest: str) -> Match[S]:
    found: list[Difference] = []
    for component, (ours, theirs, measure) in _components(query, row, newest).items():
        if ours is None:
            continue
        if _is_open(ours) or _is_open(theirs):
            amount = 0.0 if _is_open(ours) and _is_open(theirs) else scale()["unknown"]
        else:
            amount = measure(ours, theirs)
        if amount:
            adds = scale()["components"][component]["weight"] * amount
            found.append(_difference(component, ours, theirs, adds))
    return Match(row=row, distance=sum(each.adds for each in found), differences=tuple(found))


def _difference(component: str, ours: Any, theirs: Any, adds: float) -> Difference:
    said_ours, said_theirs = ("not stated" if _is_open(value) else str(value) for value in (ours, theirs))
    if component == "date":
        said_ours, said_theirs = "", f"{said_theirs} (newest {ours})"
    elif component == "dispatcher":
        said_ours = ""
    return Difference(component=component, ours=said_ours, theirs=said_theirs, adds=adds)


def _is_open(value: Any) -> bool:
    return value in (None, "", "unknown")


def _components(
    query: EvidenceQuery, row: Settings, newest: str
) -> Mapping[str, tuple[Any, Any, Callable[..., float]]]:
    return {
        "model": (query.model, row.model, model_difference),
        "hardware": (query.hardware, row.hardware, hardware_difference),
        "ep": (query.ep, row.ep, _doublings),
        "gpus": (query.gpus, row.gpus, _doublings),
        "precision": (query.precision, row.precision, _precision_difference),
        "micro_batch": (query.micro_batch, row.micro_batch, _doublings),
        "sequence": (query.seq_length, row.seq_length, _doublings),
        "routing": (query.routing, row.routing, _other),
        "fabric": (query.fabric, row.fabric, _other),
        "dispatcher": ("stated", row.basis if row.basis != "unknown" else "not stated", _basis_difference),
        "date": (newest or None, row.date, _years),
    }


def model_difference(ours: str, theirs: str) -> float:
    """0 same model, 1 same family, 2 another family."""
    if ours == theirs:
        return 0.0
    return 1.0 if family_of(ours) == family_of(theirs) else 2.0


def hardware_difference(ours: str, theirs: str) -> float:
    """0 same GPU, 1 same generation and domain size, 2 one of the two, 3 neither or not in the catalogue."""
    if ours == theirs:
        return 0.0
    from moe_dispatch.site.hardware import load_hardware

    known = load_hardware()
    if ours not in known or theirs not in known:
        return 3.0
    one, other = known[ours], known[theirs]
    same_generation = one.capability.split(".")[0] == other.capability.split(".")[0]
    return 3.0 - same_generation - (one.nvlink_domain == other.nvlink_domain)


def family_of(model: str) -> str:
    """Family of a model by `data/families.yaml`; a model that is not listed is its own."""
    return _families().get(model, model)


def family_members(family: str) -> frozenset[str]:
    """Models of a family; empty when there is none of that name."""
    return frozenset(model for model, each in _families().items() if each == family)


def _doublings(ours: int, theirs: int) -> float:
    return abs(log2(ours / theirs))


def _precision_difference(ours: str, theirs: str) -> float:
    if ours == theirs:
        return 0.0
    return 0.5 if ours.split("_")[0] == theirs.split("_")[0] else 1.0


def _other(ours: str, theirs: str) -> float:
    return float(ours != theirs)


def _basis_difference(_ours: str, theirs: str) -> float:
    return {"stated": 0.0, "inferred": 1.0}.get(theirs, 2.0)


def _years(newest: str, theirs: str) -> float:
    return max((_day(newest) - _day(theirs)).days, 0) / DAYS_OF_A_YEAR


def _day(text: str) -> date:
    return date.fromisoformat(text if len(text) > len("2026-01") else f"{text}-01")


@cache
def scale() -> dict[str, Any]:
    """Weights and the amount for what is not stated, as `data/distance.yaml` has them."""
    return _yaml("distance.yaml")


@cache
def _families() -> dict[str, str]:
    return {model: family for family, models in _yaml("families.yaml").items() for model in models}


def _yaml(name: str) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: dict[str, Any] = yaml.load(data_file(name).read_text(encoding="utf-8"), Loader=loader)
    return document
