"""Exchange interfaces that packages offer, and what a missing one means (`gate_apis.yaml`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.data import read_yaml


class Api(BaseModel):
    """One interface: `module.symbol`, and who is served by it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    module: str
    symbol: str
    serves: str

    @property
    def name(self) -> str:
        """`deep_ep.Buffer`."""
        return f"{self.module}.{self.symbol}"


class Variant(BaseModel):
    """A missing feature with a name of its own, and its fix; `present` narrows it to builds that offer that one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    missing: str
    present: str | None = None
    variant: str
    fix: str
    source: str


@cache
def load_apis() -> tuple[Api, ...]:
    """All interfaces that the gate looks for."""
    return tuple(Api.model_validate(entry) for entry in _document()["apis"])


def variant_of(missing: Sequence[str], offered: Sequence[str]) -> Variant | None:
    """What it is called when these (`deep_ep.HybridEPBuffer`) are missing from a package that offers those."""
    for entry in _document()["variants"]:
        variant = Variant.model_validate(entry)
        if variant.missing in missing and variant.present in (None, *offered):
            return variant
    return None


def served_by(offered: Sequence[str]) -> str:
    """What the interfaces that are there can be used for, as half a sentence; empty when none is known."""
    return ", ".join(f"{api.name} serves {api.serves}" for api in load_apis() if api.name in offered)


@cache
def _document() -> dict[str, list[dict[str, str]]]:
    document: dict[str, list[dict[str, str]]] = read_yaml("moe_dispatch.site", "gate_apis.yaml")
    return document
