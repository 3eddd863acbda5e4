"""Where each rank is: a small file per rank, replaced atomically, that the launcher watches and reads after a crash.

A rank that fails also leaves an error file, because its log may hold nothing (`MemoryError`) or too much.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from moe_dispatch.evidence.record import Model

_M = TypeVar("_M", bound=Model)


class Position(Model):
    """Progress of one rank.

    Fields:
        pid: process id on its host.
        phase: `start`, `build`, `oracle`, `calibrate`, `prepare`, `warmup`, `measure`, `end`, and
            `done` when the groups are destroyed.
        arm: index into the plan's arms; None outside an arm.
        routing: routing being measured, or empty.
        iteration: running number of the iteration inside the phase.
        time: seconds since the epoch at which it was reached.
    """

    rank: int
    host: str
    pid: int
    phase: str
    arm: int | None = None
    routing: str = ""
    iteration: int = 0
    time: float = 0.0

    def describe(self) -> str:
        """`phase measure, iteration 7`."""
        return f"phase {self.phase}, iteration {self.iteration}" if self.iteration else f"phase {self.phase}"


class RankError(Model):
    """What a rank says about the exception that ended it. `kind` is a value of `classify.ErrorKind`."""

    rank: int
    host: str
    kind: str
    message: str
    fix: str = ""
    arm: int | None = None
    phase: str = ""


class ProgressWriter:
    """Writes this rank's position. Costs tens of microseconds; called outside timed regions only."""

    def __init__(self, folder: Path, rank: int, host: str) -> None:
        self._folder = folder
        self.position = Position(rank=rank, host=host, pid=os.getpid(), phase="start")
        folder.mkdir(parents=True, exist_ok=True)
        self.at("start")

    def at(self, phase: str, arm: int | None = None, routing: str = "", iteration: int = 0) -> None:
        """Record that this rank begins the named step."""
        self.position = self.position.model_copy(
            update={"phase": phase, "arm": arm, "routing": routing, "iteration": iteration, "time": time.time()}
        )
        _replace(self._folder / f"rank{self.position.rank}.json", self.position.model_dump_json())

    def host_is(self, host: str) -> None:
        """Use a host name that tells nodes apart."""
        self.position = self.position.model_copy(update={"host": host})

    def fail(self, kind: str, message: str, fix: str = "") -> None:
        """Leave the error file."""
        here = self.position
        error = RankError(
            rank=here.rank, host=here.host, kind=kind, message=message, fix=fix, arm=here.arm, phase=here.describe()
        )
        _replace(self._folder / f"error{here.rank}.json", error.model_dump_json())

    def forgive(self) -> None:
        """Remove the error file: the ranks agreed on the error and go on."""
        (self._folder / f"error{self.position.rank}.json").unlink(missing_ok=True)


def read_positions(folder: Path) -> list[Position]:
    """Positions of all ranks of this host, by rank."""
    return sorted(_read_all(folder, "rank*.json", Position), key=lambda p: p.rank)


def read_errors(folder: Path) -> list[RankError]:
    """Error files of all ranks of this host, by rank."""
    return sorted(_read_all(folder, "error*.json", RankError), key=lambda e: e.rank)


def _read_all(folder: Path, pattern: str, kind: type[_M]) -> list[_M]:
    read = (_read(path, kind) for path in folder.glob(pattern))
    return [entry for entry in read if entry is not None]


def _read(path: Path, kind: type[_M]) -> _M | None:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
