"""The selection guide as typed data, part two: practice, knobs, environment variables and combinations of features."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moe_dispatch.core.choice import KnobValue
from moe_dispatch.decide.guide_condition import Condition, Stage
from moe_dispatch.decide.guide_rules import Guidance, read_guide

PracticeTopic = Literal["path", "availability", "routing", "interaction", "pitfall"]


class Practice(Guidance):
    """What to do or to avoid, whatever the dispatcher.

    Fields:
        topic: `path` entries are steps, in the order of the file.
        stage: of a step.
        commands: of this package, with `{args}` and `{place}` for the workload and the site.
        guard: what of this package enforces it.
    """

    topic: PracticeTopic
    stage: Stage | None = None
    commands: tuple[str, ...] = ()
    guard: str = Field(min_length=1)

    @model_validator(mode="after")
    def _only_steps_have_a_stage(self) -> Practice:
        if (self.topic == "path") != (self.stage is not None):
            raise ValueError(f"practice {self.id}: `stage` belongs to steps of the path, and they need it")
        return self


class KnobDefault(BaseModel):
    """A default of a knob.

    Fields:
        who: the library together with Megatron-Core, or the performance harness of Bridge.
        label: where it holds, in words; `when`: the same as a condition.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: KnobValue
    who: Literal["library", "harness"]
    label: str = Field(min_length=1)
    when: Condition = Condition()


class KnobGuide(Guidance):
    """Defaults of one knob of a backend, and how to tune it."""

    backend: str
    knob: str
    defaults: tuple[KnobDefault, ...] = Field(min_length=1)


class Variable(Guidance):
    """One environment variable in one situation.

    Fields:
        value: a template of the guide; empty when nothing is set.
        how: set it, set it to what the machine has, leave it unset, set it at build time, or keep it equal in all arms.
        backends: whose arm needs it; empty means every arm.
    """

    name: str
    value: str
    how: Literal["set", "own", "unset", "build", "equal"]
    backends: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _a_value_where_one_is_set(self) -> Variable:
        if (self.how in ("set", "build")) != bool(self.value):
            raise ValueError(f"variable {self.id}: `value` belongs to variables that are set, and they need it")
        return self


class Combination(Guidance):
    """Whether a feature goes with a dispatcher; `needs` is legal with what the text says."""

    feature: str
    verdict: Literal["legal", "illegal", "needs"]
    backends: tuple[str, ...] = ()


G = TypeVar("G", bound=Guidance)


def _load(kind: type[G], file: str, key: str) -> tuple[G, ...]:
    raw: list[Any] = read_guide(file)[key]
    return tuple(kind.model_validate(entry) for entry in raw)


@cache
def load_practice() -> tuple[Practice, ...]:
    """Steps, availability, routing, interactions and pitfalls."""
    return _load(Practice, "guide_practice.yaml", "practice")


@cache
def load_knobs() -> tuple[KnobGuide, ...]:
    """Knobs by backend."""
    return _load(KnobGuide, "guide_knobs.yaml", "knobs")


@cache
def load_variables() -> tuple[Variable, ...]:
    """Environment variables."""
    return _load(Variable, "guide_environment.yaml", "environment")


@cache
def load_combinations() -> tuple[Combination, ...]:
    """Features with dispatchers."""
    return _load(Combination, "guide_combinations.yaml", "combinations")
