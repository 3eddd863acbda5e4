"""What the training level adds to a launch, as data: batch, text, steps, warm-up rule. Imports no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.record import Model
from moe_dispatch.workload.trainable import NATURAL, canonical_routing

TRAINING_LEVEL = "training_step"
"""Level in the contract, that of runs read from training logs."""

WARMUP_RULE = "max(2, a fifth of the steps)"


def warmup_steps(steps: int) -> int:
    """Leading steps that are left out of the steady window, by `WARMUP_RULE`; one step always remains."""
    return min(steps - 1, max(2, -(-steps // 5)))


class TrainPlan(Model):
    """Training part of a launch; every arm starts from the same weights and sees the same batches.

    Fields:
        steps: of each arm, warm-up included; warmup: leading steps outside the window.
        micro_batch, global_batch: sequences.
        text: path of a text file that every node can read; None means the shipped one.
        scaled: whether the model is smaller than the one it is named after.
    """

    steps: int = Field(ge=2)
    warmup: int = Field(ge=1)
    seq_length: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    text: str | None = None
    recompute: Literal["none", "selective", "full"] = "none"
    aux_loss_coeff: float = Field(default=0.0, ge=0.0)
    learning_rate: float = Field(default=1e-3, gt=0.0)
    scaled: bool = False

    @model_validator(mode="after")
    def _window_is_not_empty(self) -> TrainPlan:
        if self.warmup >= self.steps:
            raise UsageError(
                f"{self.warmup} warm-up steps leave none of {self.steps} to time", "raise --steps, or lower --warmup"
            )
        return self

    @property
    def window(self) -> str:
        """The steady window as declared."""
        return f"steps {self.warmup + 1}-{self.steps} of {self.steps}"

    def labels(self, routing: str) -> set[str]:
        """`benchmark_only` where routing is forced, `scaled_model` where the model is not the whole one."""
        forced = {"benchmark_only"} if canonical_routing(routing) != NATURAL else set()
        return forced | ({"scaled_model"} if self.scaled else set())

    def workload_fields(self) -> dict[str, Any]:
        """Contract fields of the workload; switches of Megatron that this trainer does not have are off."""
        return {
            "seq_length": self.seq_length,
            "micro_batch": self.micro_batch,
            "global_batch": self.global_batch,
            "text": self.text or "shipped",
            "mock_data": False,
            "optimizer": "adamw",
            "learning_rate": self.learning_rate,
            "aux_loss_coeff": self.aux_loss_coeff,
            "router_dtype": "fp32",
            "mtp_layers": 0,
            "recompute_granularity": self.recompute,
            "recompute_modules": ["moe"] if self.recompute == "selective" else "none",
            "capacity_factor": "none",
            "overlap_moe_expert_parallel_comm": False,
            "delay_wgrad_compute": False,
            "shared_expert_overlap": False,
            "cuda_graph_impl": "none",
            "cuda_graph_modules": "none",
        }

    def measure_fields(self, seed: int) -> dict[str, Any]:
        """Contract fields of the measurement."""
        return {
            "level": TRAINING_LEVEL,
            "reduction": "max_over_ranks",
            "phases": ["total", "exchange"],
            "window": self.window,
            "warmup": self.warmup,
            "train_iters": self.steps,
            "log_interval": 1,
            "seed": seed,
        }
