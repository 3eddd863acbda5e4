"""Which dispatcher-related fields Megatron-Core has in which release, and their defaults: `settings_fields.yaml`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.megatron.version import parse_release

Scalar = int | float | str | bool | None
Setting = Scalar | tuple[Scalar, ...]
"""A value of a configuration field; lists are tuples."""

FieldType = Literal["int", "float", "str", "bool", "list"]


class SettingsField(BaseModel):
    """One field of TransformerConfig (which includes ModelParallelConfig).

    Fields:
        default: of the newest release that has the field.
        since, until: first and last release with it; None when it reaches beyond the releases that were read.
        choices: the values that the dataclass annotates; argparse enforces them, the dataclass does not.
        earlier: last release -> the default that held up to it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: FieldType = "str"
    default: Scalar | tuple[Scalar, ...] = None
    since: str | None = None
    until: str | None = None
    choices: tuple[str, ...] = ()
    earlier: dict[str, Scalar] = Field(default_factory=dict)

    def exists_in(self, version: str) -> bool:
        """Whether a release has the field."""
        release = parse_release(version)
        return (self.since is None or release >= parse_release(self.since)) and (
            self.until is None or release <= parse_release(self.until)
        )

    def default_in(self, version: str | None) -> Setting:
        """The default of a release; of the newest one when `version` is None."""
        if version is not None:
            release = parse_release(version)
            for last, value in self.earlier.items():
                if release <= parse_release(last):
                    return value
        return self.default


class _Known(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: dict[str, SettingsField]
    other_fields: dict[str, SettingsField]


def settings_fields() -> dict[str, SettingsField]:
    """Fields that the rules look at, by name, in the file's order."""
    return _known().fields


def other_fields() -> dict[str, SettingsField]:
    """Further names that start with `moe_`, with their releases only."""
    return _known().other_fields


@cache
def _known() -> _Known:
    import yaml

    text = resources.files("moe_dispatch.megatron").joinpath("settings_fields.yaml").read_text(encoding="utf-8")
    return _Known.model_validate(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
