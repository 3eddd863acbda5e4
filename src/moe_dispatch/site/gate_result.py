"""GateResult: how far a backend came here, level by level, and why no further."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Level = Literal["none", "installed", "imports", "supported", "initialises", "moves-tokens"]
LEVELS: tuple[Level, ...] = get_args(Level)[1:]
"""The levels that a backend climbs, in order."""

LevelState = Literal["passed", "failed", "not-run"]
Status = Literal["ok", "not-installed", "missing-feature", "broken"]

ReasonClass = Literal[
    "",
    "not-installed",
    "shadowed-module",
    "missing-feature",
    "torch-abi-mismatch",
    "wrong-cuda-major",
    "nccl-too-old",
    "two-nccl-copies",
    "nvshmem-missing",
    "nvshmem-split",
    "missing-library",
    "build-incomplete",
    "wrong-sm-arch",
    "unsupported-gpu",
    "driver-too-old",
    "no-gpu",
    "jit-compiler-missing",
    "no-p2p",
    "no-fabric-handles",
    "out-of-memory",
    "init-timeout",
    "exchange-timeout",
    "crashed",
    "wrong-result",
    "other",
]
"""Why a backend cannot be used. `not-installed` is said only when the very module that was asked for does not exist."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LevelResult(_Frozen):
    """One level of a gate.

    Fields:
        state: `not-run` is neither good nor bad; `reason` then says why nobody looked (`needs a GPU`, ...).
        reason: why it failed or was not run; empty when passed.
        evidence: what was seen, for a person: `code for 9.0, 10.0; this GPU is 9.0`.
        seconds: time spent; levels that share a child process count it once, at the last of them.
    """

    level: Level
    state: LevelState
    reason: str = ""
    evidence: tuple[str, ...] = ()
    seconds: float = 0.0


class GateResult(_Frozen):
    """Outcome of a gate.

    Fields:
        level_reached: the highest level that passed.
        levels: every level of `LEVELS` in order; empty only when there was nothing to try or the gate could not start.
        available: whether the backend may be measured, as far as this gate looked: `imports` passed and nothing failed.
        reason_class, reason, fix: empty when available; `reason` is one sentence for a person.
        variant: what kind of `missing-feature`, such as `no-hybridep-buffer`; else empty.
        consumer: on whose behalf the symbols were imported.
        provider, version, commit: distribution that provides the module, and the revision it was built from if known.
        file: path of the imported module.
        built_for_torch: the torch that the binary was built for, as far as the distribution tells.
        architectures: GPU architectures (`9.0`, `10.0a`) that the package's binaries hold code for.
        apis: which exchange interfaces the module offers (`deep_ep.Buffer`), whoever asked.
        notes: what was seen and does no harm by itself.
        detail: end of the child's output and the original traceback, secrets masked.
        seconds: time of the child process, including waiting for it to start.
    """

    backend: str
    level_reached: Level = "none"
    levels: tuple[LevelResult, ...] = Field(default=())
    available: bool = False
    reason_class: ReasonClass = ""
    variant: str = ""
    reason: str = ""
    fix: str = ""
    consumer: str = ""
    provider: str | None = None
    version: str | None = None
    commit: str | None = None
    file: str | None = None
    built_for_torch: str | None = None
    architectures: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    detail: str = ""
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        """`broken` means present but unusable: never to be called `not installed`."""
        if self.available:
            return "ok"
        if self.reason_class == "not-installed":
            return "not-installed"
        return "missing-feature" if self.reason_class == "missing-feature" else "broken"

    def level(self, name: Level) -> LevelResult | None:
        """The result of one level, None when the gate did not get to say anything about it."""
        return next((each for each in self.levels if each.level == name), None)
