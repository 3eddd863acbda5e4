"""Lines of a launch's results file: what rank 0 appends after every step, and what a killed launch leaves readable.

Each line is one JSON object of one of the models here; a half-written last line is ignored by the reader.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from moe_dispatch.evidence.record import Correctness, Iteration, Memory, Model, RunStatus, Traffic
from moe_dispatch.evidence.training import ExposedCommunication, Parity, RankMemory

RESULTS_FILE = "results.jsonl"


class Started(Model):
    """All ranks met. `site` and `stack` are contract fields only the ranks can see."""

    kind: Literal["started"] = "started"
    host_of_rank: tuple[str, ...]
    site: dict[str, Any]
    stack: dict[str, Any]
    labels: tuple[str, ...] = ()


class Fitted(Model):
    """Tokens per rank that are run, and the calibration iteration that decided it (None when nothing was fitted)."""

    kind: Literal["fitted"] = "fitted"
    tokens: int
    calibration_us: float | None = None


class ArmReady(Model):
    """An arm was built and passed the oracle."""

    kind: Literal["arm_ready"] = "arm_ready"
    arm: int
    correctness: Correctness
    provider: str = ""
    provider_version: str = ""


class ArmRefused(Model):
    """All ranks agreed that an arm cannot be measured; the others go on."""

    kind: Literal["arm_refused"] = "arm_refused"
    arm: int
    status: RunStatus
    reason: str
    fix: str = ""
    correctness: Correctness | None = None


class RoutingCounted(Model):
    """Rows of the routing actually used."""

    kind: Literal["routing_counted"] = "routing_counted"
    routing: str
    traffic: Traffic


class ArmMemory(Model):
    """Memory of one arm under one routing, after warm-up."""

    kind: Literal["arm_memory"] = "arm_memory"
    routing: str
    arm: int
    memory: Memory


class Visit(Model):
    """Timed iterations of one visit of one arm."""

    kind: Literal["visit"] = "visit"
    routing: str
    arm: int
    visit: int
    iterations: tuple[Iteration, ...]


class TrainStep(Model):
    """One training step of one arm.

    Fields:
        iteration: times (`total`, `exchange`) and the step's number, from 1.
        loss, grad_norm: None where they are not finite.
    """

    kind: Literal["train_step"] = "train_step"
    routing: str
    arm: int
    iteration: Iteration
    loss: float | None
    grad_norm: float | None
    updated: bool


class ParityChecked(Model):
    """A step of one arm from the initial weights was held against the reference."""

    kind: Literal["parity_checked"] = "parity_checked"
    arm: int
    parity: Parity


class Trained(Model):
    """An arm has done all its steps under one routing.

    Fields:
        parameters: of the whole model and of one rank; exposed: over the steady window.
        calls: intervals inside the dispatcher by name, all steps of rank 0.
    """

    kind: Literal["trained"] = "trained"
    routing: str
    arm: int
    memory: tuple[RankMemory, ...]
    parameters: dict[str, float]
    exposed: ExposedCommunication
    calls: dict[str, int]


class Finished(Model):
    """Rank 0 reached the end of the plan."""

    kind: Literal["finished"] = "finished"


Event = Annotated[
    Started
    | Fitted
    | ArmReady
    | ArmRefused
    | RoutingCounted
    | ArmMemory
    | Visit
    | ParityChecked
    | TrainStep
    | Trained
    | Finished,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


class ResultsWriter:
    """Appends events; every line is on disk when `write` returns. Rank 0 only."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: Event) -> None:
        """Append one line, flush and fsync."""
        self._file.write(event.model_dump_json() + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ResultsReader:
    """Follows a results file while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_events(self) -> list[Event]:
        """Complete lines written since the last call; none when the file is not there yet."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        parsed = (_parse(line) for line in complete.splitlines())
        return [event for event in parsed if event is not None]


def _parse(line: bytes) -> Event | None:
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError:
        return None
