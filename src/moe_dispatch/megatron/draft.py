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
    benchmark_only: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def set(self, name: str, value: KnobValue, *, benchmark_only: bool = False) -> None:
        """Set a TransformerConfig field in both forms."""
        flag = [lm_flag(name)] if value is True else [lm_flag(name), str(value)]
        override = f"model.{name}={hydra(value)}"
        self.lm += flag
        self.overrides.append(override)
        if benchmark_only:
            self.benchmark_only += [" ".join(flag), override]

    def override(self, name: str, value: KnobValue) -> None:
        """Set a field in Bridge only, where a recipe may have set it before."""
        self.overrides.append(f"model.{name}={hydra(value)}")


def lm_flag(field_name: str) -> str:
    """Megatron-LM's flag of a TransformerConfig field."""
    return "--" + field_name.replace("_", "-")


def hydra(value: KnobValue) -> str:
    """A value in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
