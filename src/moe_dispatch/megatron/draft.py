"""A configuration while it is written: the same field as a Megatron-LM flag and as a Megatron-Bridge override."""

from __future__ import annotations

from dataclasses import dataclass, field

from moe_dispatch.core.choice import KnobValue
from moe_dispatch.megatron.fields import FieldTable


@dataclass
class Draft:
    """What is collected while a configuration is written."""

    version: str
    table: FieldTable
    lm: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    benchmark_args: list[str] = field(default_factory=list)
    benchmark_overrides: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    other_workload: str = ""

    def set(self, name: str, value: KnobValue) -> None:
        """Set a TransformerConfig field in both forms."""
        self.lm += _argument(name, value)
        self.override(name, value)

    def force(self, name: str, value: KnobValue) -> None:
        """Set a field for benchmarks only, in both forms."""
        self.benchmark_args += _argument(name, value)
        self.benchmark_overrides.append(f"model.{name}={hydra(value)}")

    def override(self, name: str, value: KnobValue) -> None:
        """Set a field in Bridge only, where a recipe may have set it before."""
        self.overrides.append(f"model.{name}={hydra(value)}")


def _argument(name: str, value: KnobValue) -> list[str]:
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [flag, str(value)]


def hydra(value: KnobValue) -> str:
    """A value in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
