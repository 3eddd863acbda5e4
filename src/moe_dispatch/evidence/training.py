"""What a training run says of itself beyond timed iterations: read from its logs, kept with its RunRecord.

All of it is evidence and derivation that a reader can check: which configuration was seen at which stage, how strongly
it is proven that the dispatcher ran, which iterations were printed and which of them count, memory and loss health.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ProofLevel = Literal["none", "configured", "deduced", "backend_text", "constructed", "kernels", "traced"]
PROOF_LEVELS: tuple[ProofLevel, ...] = (
    "none",
    "configured",
    "deduced",
    "backend_text",
    "constructed",
    "kernels",
    "traced",
)
"""Weakest first. `configured`: some configuration names it. `deduced`: the validated configuration names it, the
framework never falls back from there, and iterations with a finite loss were printed. `backend_text`: text that only
this backend prints. `constructed`: the class of the built dispatcher was logged. `kernels`: its kernels are in a
profile. `traced`: calls of the built dispatcher were counted."""
PROVEN = PROOF_LEVELS[PROOF_LEVELS.index("deduced") :]


PARITY_RATIO = 1.5
"""How many times alltoall's own distance to the reference a dispatcher may have."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrainingIteration(_Model):
    """One printed iteration.

    Fields:
        attempt: 0, and one more after each restart.
        elapsed_ms: mean over the iterations since the line before.
        in_window: counted in the metrics.
    """

    iteration: int
    attempt: int = 0
    elapsed_ms: float | None = None
    tflops_per_gpu_logged: float | None = None
    lm_loss: float | None = None
    grad_norm: float | None = None
    skipped: int | None = None
    nan: int | None = None
    in_window: bool = False


class Window(_Model):
    """The steady window: its rule as declared, its iterations as it came out, and how many lines it needs and has."""

    rule: str
    first: int | None = None
    last: int | None = None
    needed: int = 0
    found: int = 0


class RankMemory(_Model):
    """One memory line, in bytes. `printed_unit` says how it was labelled (`MB` of Megatron-LM is MiB)."""

    rank: int
    after_iteration: int
    printed_unit: str
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None


class TrainingMetrics(_Model):
    """Derived from the window, every iteration of it; outliers are named and stay in.

    Fields:
        spread: (largest - smallest) / median of the step times.
        outliers: iterations beyond 1.5 times the median.
        tokens_per_s_per_gpu: sequence x global batch / (mean step time x ranks).
        tflops_per_gpu: model FLOPs of Megatron's formula (workload.flops) / (mean step time x ranks).
        tflops_per_gpu_logged: mean of what the framework printed in the window, whatever formula it used.
        mfu: tflops_per_gpu over `peak_tflops`, the dense bf16 peak of `peak_of`.
    """

    mean_ms: float
    median_ms: float
    spread: float
    outliers: tuple[int, ...] = ()
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    tflops_per_gpu_logged: float | None = None
    mfu: float | None = None
    peak_tflops: float | None = None
    peak_of: str = ""


class LossHealth(_Model):
    """Losses as printed.

    Fields:
        first, last: first and last finite loss.
        not_finite: iterations whose loss or gradient norm was NaN, infinite or left out.
        skipped: iterations that were skipped, as counted by the framework.
    """

    first: float | None = None
    last: float | None = None
    not_finite: tuple[int, ...] = ()
    skipped: int = 0


class Activation(_Model):
    """How strongly it is proven that the dispatcher ran, and by what."""

    level: ProofLevel
    evidence: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether it counts as having run."""
        return self.level in PROVEN


class SeenValue(_Model):
    """A configuration value and the stage at which it was seen."""

    field: str
    value: Any
    stage: str


class RunOutcome(_Model):
    """What ended the run, if anything did.

    Fields:
        reason_class: class of the root message, such as `not-installed` or `collective-timeout`; empty where none.
        root: the first message that explains the end; rank: that printed it, where the log says.
        fallout: messages of other ranks and of the launcher that follow from it, each kind once.
    """

    reason_class: str = ""
    root: str = ""
    rank: int | None = None
    fallout: tuple[str, ...] = ()


class ExposedCommunication(_Model):
    """Expert-parallel communication in a profile, from the union of kernel intervals; worst device.

    Fields:
        span_ms: from the first to the last kernel.
        communication_ms: under any kernel of the dispatcher; exposed_ms: under those and no computing kernel.
        share: exposed_ms / span_ms, the most that a dispatcher of no cost could save of the step.
        kernels: names that were counted, with their number.
        ambiguous: the kernels may also serve something else (pipeline or sharded-optimizer traffic).
    """

    device: int
    span_ms: float
    communication_ms: float
    exposed_ms: float
    share: Annotated[float, Field(ge=0, le=1)]
    kernels: dict[str, int]
    ambiguous: bool = False


class ParityDistance(_Model):
    """How far one quantity is from the float32 reference, relative to its norm, and how far it may be.

    Fields:
        distance: None where a value is not finite.
        baseline: the distance of alltoall in the same precision under the same routing, the larger of two orders of
            its sums; allowed: `PARITY_RATIO` times that.
    """

    distance: float | None = Field(ge=0)
    baseline: float = Field(ge=0)
    allowed: float = Field(ge=0)

    @property
    def passed(self) -> bool:
        """Whether it is close enough."""
        return self.distance is not None and self.distance <= self.allowed


class Parity(_Model):
    """A step from the initial weights held against a float32 model that has all experts on every rank.

    Fields:
        distances: by quantity (`logits`, `expert_gradients`, `replicated_gradients`).
        step0_loss, reference_loss: nats (None where not finite); loss_bound: how far they may be apart, from alltoall's
            distance in logits.
        tokens: of each rank.
    """

    distances: dict[str, ParityDistance]
    step0_loss: float | None
    reference_loss: float
    loss_bound: float
    tokens: int

    @property
    def loss_passed(self) -> bool:
        """Whether the loss of the first step is that of the reference."""
        return self.step0_loss is not None and abs(self.step0_loss - self.reference_loss) <= self.loss_bound

    @property
    def passed(self) -> bool:
        """Whether loss and gradients are as close to the reference as alltoall's."""
        return self.loss_passed and all(one.passed for one in self.distances.values())


class TrainingRun(_Model):
    """Everything above for one run.

    Fields:
        framework: `megatron-lm`, `megatron-bridge`, or empty where the log does not tell.
        requested, effective: dispatcher as asked for and as it must have been built; empty where unknown.
        sm_count, sm_field: streaming multiprocessors given to it and the field that set them.
        seen: dispatcher fields by stage.
        planned_iterations: of the run; log_interval: iterations between two lines.
        parameters: counts as printed, by name.
        parity: of runs of this package's own trainer.
        unattributed_lines: iteration lines whose number could not be read; they count nowhere.
    """

    framework: str = ""
    core_version: str | None = None
    requested: str = ""
    effective: str = ""
    sm_count: int | None = None
    sm_field: str = ""
    seen: tuple[SeenValue, ...] = ()
    activation: Activation
    outcome: RunOutcome = RunOutcome()
    planned_iterations: int | None = None
    log_interval: int = 1
    restarts: int = 0
    iterations: tuple[TrainingIteration, ...] = ()
    window: Window
    metrics: TrainingMetrics | None = None
    loss: LossHealth = LossHealth()
    memory: tuple[RankMemory, ...] = ()
    parameters: dict[str, float] = Field(default_factory=dict)
    exposed: ExposedCommunication | None = None
    parity: Parity | None = None
    files: tuple[str, ...] = ()
    unattributed_lines: int = 0
