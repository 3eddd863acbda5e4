"""RunRecord: one attempt of one dispatcher under one contract.

Only a record with status `ok` may carry performance; the validator refuses anything else, so "not installed" can never
be read as "slow". One attempt is one launch (one set of processes), which is what the bootstrap resamples first.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from moe_dispatch.core.choice import Choice
from moe_dispatch.evidence.training import TrainingRun
from moe_dispatch.site.environment import mask_secrets, recorded_environment

SCHEMA_VERSION = 1


class RunStatus(str, Enum):
    """How an attempt ended. Everything but `ok` is shown and never ranked."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    UNSUPPORTED = "unsupported"
    FELL_BACK = "fell_back"
    INCORRECT = "incorrect"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"
    TRUNCATED = "truncated"
    UNPROVEN = "unproven"


class Model(BaseModel):
    """Base of everything stored: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Iteration(Model):
    """One timed iteration, maximum over ranks.

    Fields:
        pass_index: which visit of the arm in the interleaved order (0, 1, 2, ...); the A B B A order makes even and odd
            visits of the baseline its own A-against-A repeats.
        latency_us: {phase: microseconds}, each the maximum over ranks. Phase `total` is always there; exchange level
            adds `forward` and `backward`.
        slowest_rank: rank that set `total`; None where only the maximum is known (training logs).
        step: training iteration it was printed for; None outside of training.
    """

    pass_index: int = Field(ge=0)
    latency_us: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    slowest_rank: int | None = Field(default=None, ge=0)
    step: int | None = Field(default=None, ge=0)

    @field_validator("latency_us")
    @classmethod
    def _has_total(cls, latency_us: dict[str, float]) -> dict[str, float]:
        if "total" not in latency_us:
            raise ValueError(
                f"an iteration needs the latency of phase 'total'; it has {', '.join(latency_us) or 'none'}"
            )
        return latency_us


class Correctness(Model):
    """Outcome of the oracle on the real group, before any timing."""

    passed: bool
    checks: dict[str, bool] = Field(default_factory=dict)
    max_error: float | None = None
    bound: float | None = None
    detail: str = ""

    @model_validator(mode="after")
    def _no_pass_over_a_failed_check(self) -> Correctness:
        failed = [name for name, passed in self.checks.items() if not passed]
        if self.passed and failed:
            raise ValueError(f"correctness cannot have passed with failed checks: {', '.join(failed)}")
        return self


class Memory(Model):
    """Bytes, maximum over ranks. `device_used_delta` sees buffers outside the allocator.

    On a CPU only the delta exists: growth of the resident set.
    """

    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    device_used_delta_bytes: int | None = None


class Traffic(Model):
    """Rows counted from the routing actually used, summed over ranks, one direction; times row_bytes gives bytes."""

    row_bytes: int
    rows_copies: int
    rows_copies_off_rank: int
    rows_copies_off_domain: int
    rows_rank: int
    rows_rank_off_rank: int
    rows_rank_off_domain: int
    rows_domain: int
    rows_domain_off_domain: int


class Performance(Model):
    """Raw samples of one launch; statistics are derived, never stored alone."""

    iterations: tuple[Iteration, ...]
    host_of_rank: tuple[str, ...]


class Contract(Model):
    """Everything that must be equal before two runs may be compared; the dispatcher and its knobs are not in it.

    Values are plain JSON scalars or lists; a value of None means *unknown*, which caps a verdict at `inconclusive`.
    Grouped: `workload` (shape, tokens, layout, routing, dtype), `measure` (level, iterations, warm-up, seed),
    `site` (device, hosts, transport, ranks), `stack` (versions of python, torch, nccl, this package, driver).
    """

    workload: dict[str, Any]
    measure: dict[str, Any]
    site: dict[str, Any]
    stack: dict[str, Any]


class Provenance(Model):
    """Where the record comes from.

    `environment` keeps only variables on the allow-list of `site.environment`, with secrets masked; so is `command`.
    """

    created: datetime
    tool_version: str
    host: str
    command: str = ""
    environment: dict[str, str] = Field(default_factory=dict)
    provider: str = ""
    provider_version: str = ""
    proof: str = ""

    @field_validator("environment")
    @classmethod
    def _allowed_variables(cls, environment: dict[str, str]) -> dict[str, str]:
        return recorded_environment(environment)

    @field_validator("command")
    @classmethod
    def _masked(cls, command: str) -> str:
        return mask_secrets(command)


class RunRecord(Model):
    """One attempt.

    Fields:
        run_id: unique, sortable, used as the folder name.
        session: groups the launches of one `select` or `bench`.
        stage: `gate`, `screen`, `decide`, `skew`, `confirm`.
        launch: index of the launch inside the stage.
        processes: names the set of processes; a launch that was cut short and repeated has two. Empty where unknown.
        choice: dispatcher and knobs under test.
        labels: `oversubscribed`, `scaled_tokens`, `benchmark_only`, `untuned`, ...; they travel with every number.
        reason: for any status but `ok`, one sentence a person can act on.
        fix: what to do about `reason`.
        training: what else a training run says of itself; None for runs of `bench`.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    session: str
    stage: str
    launch: int
    processes: str = ""
    choice: Choice
    status: RunStatus
    contract: Contract
    labels: tuple[str, ...] = ()
    reason: str = ""
    fix: str = ""
    correctness: Correctness | None = None
    memory: Memory | None = None
    traffic: Traffic | None = None
    performance: Performance | None = None
    partial: Performance | None = None
    training: TrainingRun | None = None
    provenance: Provenance

    @model_validator(mode="after")
    def _only_ok_carries_performance(self) -> RunRecord:
        if self.status is RunStatus.OK:
            if self.performance is None or not self.performance.iterations:
                raise ValueError("status ok needs performance with at least one iteration")
            if self.correctness is None or not self.correctness.passed:
                raise ValueError("status ok needs a passed correctness check")
        else:
            if self.performance is not None:
                raise ValueError(
                    f"status {self.status.value} must not carry performance (use partial for raw iterations)"
                )
            if self.training is not None and self.training.metrics is not None:
                raise ValueError(f"status {self.status.value} must not carry training metrics")
            if not self.reason:
                raise ValueError(f"status {self.status.value} needs a reason")
        return self
