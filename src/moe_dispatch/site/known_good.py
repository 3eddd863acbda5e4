"""Combinations of software with which a backend is known to work (`known_good.yaml`), and the one that is nearest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.data import read_yaml
from moe_dispatch.site.versions import matches

How = Literal["ran", "initialised", "required", "built"]
_STRENGTH: tuple[How, ...] = ("ran", "initialised", "built", "required")
_CUDA_OF_TORCH = re.compile(r"\+cu(\d+)(\d)$")


class KnownGood(BaseModel):
    """One combination.

    Fields:
        backends: those that it holds for.
        how: how strong the entry is, see the data file.
        components: component as in `stack_fingerprint`, and `cuda` -> condition on its version.
        commit: revision of the backend's package.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    date: date
    backends: tuple[str, ...]
    how: How
    components: dict[str, str]
    commit: str = ""
    note: str = ""
    source: str


@dataclass(frozen=True)
class Difference:
    """A component that does not fit: what is here (None: absent or unknown) and the condition."""

    component: str
    have: str | None
    want: str

    def __str__(self) -> str:
        return f"{self.component} {self.have or 'absent'} (needs {self.want})"


@dataclass(frozen=True)
class Nearest:
    """The nearest combination and what separates this stack from it."""

    combination: KnownGood
    differences: tuple[Difference, ...]

    def text(self) -> str:
        """One sentence for a person."""
        entry = self.combination
        wants = ", ".join(f"{name} {condition.lstrip('=')}" for name, condition in entry.components.items())
        commit = f", commit {entry.commit}" if entry.commit else ""
        apart = "; ".join(map(str, self.differences)) or "nothing"
        return f"nearest known-good combination ({entry.how}, {entry.date}): {wants}{commit}; different here: {apart}"


@cache
def load_known_good() -> tuple[KnownGood, ...]:
    """All entries."""
    return tuple(KnownGood.model_validate(entry) for entry in read_yaml("moe_dispatch.site", "known_good.yaml"))


def nearest_known_good(stack: Mapping[str, str | None], backend: str) -> Nearest | None:
    """The combination for a backend from which this stack differs least; among equals the stronger, then the newer.

    Args:
        stack: component -> version (`site.stack.stack_fingerprint`); CUDA is taken from torch's local version where it
            is not given.

    Returns:
        None when nothing is known about the backend.
    """
    versions = dict(stack)
    cuda = _CUDA_OF_TORCH.search(versions.get("torch") or "")
    if "cuda" not in versions and cuda:
        versions["cuda"] = f"{cuda[1]}.{cuda[2]}"
    found = [Nearest(entry, _differences(versions, entry)) for entry in load_known_good() if backend in entry.backends]
    return min(found, key=_distance) if found else None


def _differences(versions: Mapping[str, str | None], entry: KnownGood) -> tuple[Difference, ...]:
    return tuple(
        Difference(component, versions.get(component), condition)
        for component, condition in entry.components.items()
        if not _fits(versions.get(component), condition)
    )


def _fits(version: str | None, condition: str) -> bool:
    return bool(version) and all(matches(str(version), part) for part in condition.split(","))


def _distance(nearest: Nearest) -> tuple[int, int, int]:
    entry = nearest.combination
    return (len(nearest.differences), _STRENGTH.index(entry.how), -entry.date.toordinal())
