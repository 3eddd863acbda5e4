"""What a difference in a contract field means: the table of `contract_fields.yaml`, read once.

A field is a `confounder` unless the table says that a backend needs, owns or ignores it (`dispatcher_coupled`), or that
it cannot change a steady iteration (`harmless`).
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from moe_dispatch.evidence.record import Model, RunRecord

SECTIONS = ("workload", "measure", "site", "stack")
ARM_LABELS = frozenset({"untuned"})
"""Labels that say something about one arm; they may differ between arms and are carried into the statement."""
TRAINING_LEVEL = "training_step"
UNLISTED_GROUP = "other"
STACK_GROUP = "stack"
ALWAYS = "always"


class DifferenceClass(str, Enum):
    """What a difference between compared arms does to the comparison: refuses it, is disclosed, or nothing."""

    CONFOUNDER = "confounder"
    DISPATCHER_COUPLED = "dispatcher_coupled"
    HARMLESS = "harmless"
    CONTROLLED = "controlled"
    """A stack field in which environments differ whose control runs tie."""


class FieldRule(Model):
    """One entry of the table.

    Fields:
        belongs_to: the only dispatchers that read the field; each of their arms has a value of its own.
        ignored_by: dispatchers that do not read it.
        needed_by: dispatcher to the value that it needs.
        must_be_known: an unknown value counts although differences are harmless.
        required: `always`, or the level of measurement that cannot do without it; empty for no.
    """

    group: str = UNLISTED_GROUP
    harmless: bool = False
    must_be_known: bool = False
    belongs_to: tuple[str, ...] = ()
    ignored_by: tuple[str, ...] = ()
    needed_by: dict[str, Any] = Field(default_factory=dict)
    required: str = ""
    why: str = ""

    @model_validator(mode="after")
    def _one_class(self) -> FieldRule:
        if sum(map(bool, (self.harmless, self.belongs_to, self.ignored_by, self.needed_by))) > 1:
            raise ValueError("a field has one class: harmless, belongs_to, ignored_by or needed_by")
        return self


class ContractTable(NamedTuple):
    """All entries, by exact name and by prefix (longest first)."""

    exact: dict[str, FieldRule]
    prefixes: tuple[tuple[str, FieldRule], ...]
    groups: tuple[str, ...]

    def rule(self, name: str) -> FieldRule:
        """The entry of a dotted field name; an unlisted field is a confounder of the group `other`."""
        found = self.exact.get(name)
        if found is not None:
            return found
        return next((rule for prefix, rule in self.prefixes if name.startswith(prefix)), FieldRule())

    def required(self, levels: frozenset[str]) -> tuple[str, ...]:
        """Fields without which no statement about these levels could say what it is about."""
        return tuple(name for name, rule in self.exact.items() if rule.required in {ALWAYS, *levels})


@cache
def contract_table() -> ContractTable:
    """Read `contract_fields.yaml`."""
    import yaml

    text = resources.files("moe_dispatch.decide").joinpath("contract_fields.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    rules = {
        name: FieldRule.model_validate({"group": group, **(entry or {})})
        for group, fields in document.items()
        for name, entry in fields.items()
    }
    prefixes = {name[:-1]: rule for name, rule in rules.items() if name.endswith("*")}
    return ContractTable(
        exact={name: rule for name, rule in rules.items() if not name.endswith("*")},
        prefixes=tuple(sorted(prefixes.items(), key=lambda one: -len(one[0]))),
        groups=(*document, UNLISTED_GROUP),
    )


def contract_fields(record: RunRecord) -> dict[str, Any]:
    """All fields by dotted name, labels included; None means unknown."""
    fields = {
        f"{section}.{name}": value for section in SECTIONS for name, value in getattr(record.contract, section).items()
    }
    fields["labels"] = sorted(set(record.labels) - ARM_LABELS)
    return fields


def must_know(rule: FieldRule, dispatcher: str) -> bool:
    """Whether an unknown value of this dispatcher leaves a comparison open."""
    if rule.harmless:
        return rule.must_be_known
    return dispatcher in rule.belongs_to if rule.belongs_to else dispatcher not in rule.ignored_by


def binds_others(rule: FieldRule, dispatcher: str, value: Any) -> bool:
    """Whether other arms must have the value that this dispatcher ran with."""
    if rule.harmless or rule.belongs_to or dispatcher in rule.ignored_by:
        return False
    return not (dispatcher in rule.needed_by and value == rule.needed_by[dispatcher])


def binds_own_arm(rule: FieldRule, dispatcher: str) -> bool:
    """Whether all records of an arm must agree although other arms need not."""
    return dispatcher in rule.belongs_to or dispatcher in rule.needed_by
