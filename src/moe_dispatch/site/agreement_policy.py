"""What may differ between the ranks of one job: `agreement.yaml` as typed data."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Section = Literal["launch", "settings", "versions", "libraries", "machine", "backends"]
"""Kinds of fields that ranks compare; the last two come from one rank of each host."""

Weight = Literal["error", "warning", "ignored"]


class Allowance(BaseModel):
    """Fields (shell patterns) that may differ, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: tuple[str, ...] = Field(min_length=1)
    severity: Weight
    why: str = Field(min_length=1)


@cache
def load_policy() -> dict[str, tuple[Allowance, ...]]:
    """Allowances by section."""
    import yaml

    text = resources.files("moe_dispatch.site").joinpath("agreement.yaml").read_text(encoding="utf-8")
    return {
        section: tuple(Allowance.model_validate(entry) for entry in entries)
        for section, entries in yaml.safe_load(text).items()
    }


def weight(section: Section, field: str) -> Weight:
    """How bad it is when ranks differ in a field: `error` unless the policy allows it."""
    for allowance in load_policy().get(section, ()):
        if any(fnmatchcase(field, pattern) for pattern in allowance.fields):
            return allowance.severity
    return "error"


def compared(section: Section, fields: Mapping[str, str | None]) -> dict[str, str]:
    """The fields that ranks compare, without those that may differ by design; None counts as absent."""
    return {name: value for name, value in fields.items() if value is not None and weight(section, name) != "ignored"}
