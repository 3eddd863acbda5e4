"""GateResult: how far a backend came here, and why no further."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Level = Literal["none", "installed", "imports"]

ReasonClass = Literal[
    "",
    "not-installed",
    "torch-abi-mismatch",
    "nccl-too-old",
    "two-nccl-copies",
    "missing-feature",
    "missing-library",
    "build-incomplete",
    "out-of-memory",
    "init-timeout",
    "crashed",
    "other",
]
"""Why a backend cannot be used. `not-installed` is said only when the very module that was asked for does not exist."""


class GateResult(BaseModel):
    """Outcome of a gate.

    Fields:
        level_reached: `none`, `installed` (the module exists) or `imports` (every symbol its user imports is there).
        available: whether the backend may be measured, as far as this gate looks.
        reason_class, reason, fix: empty when available; `reason` is one sentence for a person.
        consumer: on whose behalf the symbols were imported.
        provider, version: distribution that provides the module.
        file: path of the imported module.
        detail: end of the child's output and the original traceback, secrets masked.
        seconds: time of the child process, including waiting for it to start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    level_reached: Level = "none"
    available: bool = False
    reason_class: ReasonClass = ""
    reason: str = ""
    fix: str = ""
    consumer: str = ""
    provider: str | None = None
    version: str | None = None
    file: str | None = None
    detail: str = ""
    seconds: float = 0.0
