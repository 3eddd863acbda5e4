"""The selection guide as typed data, part one: what every piece of guidance carries, and the rules on candidates."""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moe_dispatch.core.data import read_yaml
from moe_dispatch.decide.guide_condition import Condition, GateStatus, Situation

BASELINE = "alltoall"
Topic = Literal["availability", "backend", "hardware", "ep", "family", "fabric", "precision", "memory", "stage"]

__all__ = ["BASELINE", "Condition", "GateStatus", "Guidance", "Rule", "Situation", "load_rules", "read_guide"]


class Guidance(BaseModel):
    """What every piece of guidance carries.

    Fields:
        date: of the source it rests on.
        text: the reason, for a person.
        sources: `repo@commit:path` or what else it rests on.
        refuted_by: the observation that would make it wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    date: date
    when: Condition = Condition()
    text: str = Field(min_length=1)
    sources: tuple[str, ...] = Field(min_length=1)
    refuted_by: str = Field(min_length=1)


class Rule(Guidance):
    """One dated rule on candidates.

    Fields:
        topic: which part of the guide it belongs to.
        backends: what an exclude or note rule speaks about; empty means every backend.
        order: for an order rule, names from first to last; backends that are not named follow.
        baseline_hard_to_beat: for an order rule, the guide expects the baseline to hold its own here. It stays an
            expectation to be measured; `prior` counts how often it was right.
        drop_sweep: knobs that are not worth sweeping where the rule holds.
    """

    topic: Topic
    backends: tuple[str, ...] = ()
    effect: Literal["order", "exclude", "note"]
    order: tuple[str, ...] = ()
    baseline_hard_to_beat: bool = False
    drop_sweep: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _shape(self) -> Rule:
        if (self.effect == "order") != bool(self.order):
            raise ValueError(f"rule {self.id}: `order` belongs to order rules, and they need it")
        if BASELINE in self.order:
            raise ValueError(f"rule {self.id}: {BASELINE} is the baseline and always first")
        if self.baseline_hard_to_beat and self.effect != "order":
            raise ValueError(f"rule {self.id}: `baseline_hard_to_beat` belongs to order rules")
        return self

    def speaks_of(self, backend: str) -> bool:
        """Whether the rule is about this backend."""
        if self.effect == "order":
            return backend in self.order
        if self.effect == "exclude" and backend == BASELINE:
            return False
        return not self.backends or backend in self.backends


def read_guide(name: str) -> Any:
    """The content of one of the guide's files."""
    return read_yaml("moe_dispatch.decide", name)


@cache
def load_rules() -> tuple[Rule, ...]:
    """The rules on candidates in their order of weight."""
    return tuple(Rule.model_validate(raw) for raw in read_guide("guide_rules.yaml")["rules"])
