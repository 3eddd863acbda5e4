"""What a matched plan consists of; written as `plan.json`, which reading the logs needs and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError

PLAN_FILE = "plan.json"
SCHEMA_VERSION = 1

Stage = Literal["screen", "decide", "accept", "natural"]
STAGES: tuple[Stage, ...] = ("screen", "decide", "accept", "natural")
Framework = Literal["megatron-lm", "megatron-bridge"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedArm(_Data):
    """One configuration to train with.

    Fields:
        name: file-safe and unique in the plan.
        routing: `forced` (benchmark-only) or `natural`.
        command: words of the training script and its arguments, as `torchrun` gets them.
        environment: variables of every rank.
        differs: what it has otherwise than the baseline arm of the same stage, one entry each; nothing else differs.
        untuned: SM knobs that hold a default nobody swept here.
    """

    name: str
    stage: Stage
    choice: Choice
    routing: Literal["forced", "natural"]
    steps: int
    command: tuple[str, ...]
    environment: dict[str, str]
    differs: tuple[str, ...] = ()
    untuned: tuple[str, ...] = ()


class Run(_Data):
    """One run of one arm: its place in the order, and where its log will be, relative to the plan's folder."""

    stage: Stage
    launch: int = Field(ge=0)
    position: int = Field(ge=0)
    arm: str
    log: str


class Cost(_Data):
    """GPU-hours of a stage.

    Fields:
        step_seconds: lowest and highest assumed, with `basis` saying where they come from.
        gpu_hours: lowest and highest, start-up of every run included.
    """

    stage: Stage
    runs: int
    step_seconds: tuple[float, float]
    gpu_hours: tuple[float, float]
    basis: str


class MatchedPlan(_Data):
    """The whole experiment.

    Fields:
        world, nodes, gpus_per_node: size of the one allocation; the last two are None when the site is not known.
        warm_up_steps: steps at the start of every run whose times do not count.
        pinned: the same in every arm by construction.
        criteria: all must hold before a backend replaces the baseline.
        left_out: backend -> why it has no arm.
    """

    schema_version: int = SCHEMA_VERSION
    model: str
    site: str
    framework: Framework
    core_version: str
    world: int
    nodes: int | None
    gpus_per_node: int | None
    warm_up_steps: int
    threshold: float
    arms: tuple[PlannedArm, ...]
    runs: tuple[Run, ...]
    costs: tuple[Cost, ...]
    pinned: tuple[str, ...]
    criteria: tuple[str, ...]
    left_out: dict[str, str]
    notes: tuple[str, ...]

    def arm(self, name: str) -> PlannedArm:
        """An arm by name."""
        return next(arm for arm in self.arms if arm.name == name)

    def arms_of(self, stage: Stage) -> tuple[PlannedArm, ...]:
        """Arms of a stage, the baseline first."""
        return tuple(arm for arm in self.arms if arm.stage == stage)

    def runs_of(self, stage: Stage) -> tuple[Run, ...]:
        """Runs of a stage in their order."""
        return tuple(run for run in self.runs if run.stage == stage)


def is_plan_folder(path: Path) -> bool:
    """Whether `path` is a folder that `moe-dispatch plan` wrote."""
    return (path / PLAN_FILE).is_file()


def read_plan(folder: Path) -> MatchedPlan:
    """Read `plan.json`.

    Raises:
        UsageError: it cannot be read, is not such a plan, or is of a newer version.
    """
    path = folder / PLAN_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "write the plan again with `moe-dispatch plan`") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {version!r}; this release reads {SCHEMA_VERSION}", "use the release it is from"
        )
    try:
        return MatchedPlan.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: {where}: {first['msg']}", "write the plan again with `moe-dispatch plan`") from error
