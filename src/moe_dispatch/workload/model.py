"""ModelShape: the sizes of a mixture-of-experts model that decide its traffic, its FLOPs and the measured layer.

Shapes come from the catalogue (`catalogue.py`), from a Hugging Face config (`hf_config.py`) or from the user's own
YAML; this module only says what a consistent shape is.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moe_dispatch.core.errors import WorkloadError

ScoreFunction = Literal["softmax", "sigmoid", "sqrtsoftplus"]
Activation = Literal["swiglu", "squared_relu"]
Attention = Literal["gqa", "mla", "other"]


class RouterShape(BaseModel):
    """How tokens pick experts.

    Fields:
        score_function: applied to the logits in float32.
        num_groups, group_topk: group-limited routing (G groups, g of them per token); None when every expert competes.
        expert_bias: a per-expert bias takes part in the selection and not in the weights (aux-loss-free balancing).
        normalize_topk: the K chosen scores are divided by their sum.
        scaling_factor: multiplies the weights at the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    score_function: ScoreFunction = "softmax"
    num_groups: int | None = None
    group_topk: int | None = None
    expert_bias: bool = False
    normalize_topk: bool = True
    scaling_factor: float = 1.0


class MlaShape(BaseModel):
    """Multi-latent attention sizes; `q_lora_rank` is None where queries are not compressed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    q_lora_rank: int | None
    kv_lora_rank: int = Field(gt=0)
    qk_head_dim: int = Field(gt=0)
    qk_pos_emb_head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)


class ModelShape(BaseModel):
    """One model.

    Fields:
        hidden: residual width, elements.
        num_layers, num_moe_layers: decoder blocks, and how many of them hold experts; multi-token-prediction layers are
            counted in `mtp_layers` only.
        moe_ffn_hidden: inner width of one routed expert.
        shared_expert_ffn_hidden: inner width of all shared experts together; 0 when there is none.
        ffn_hidden: inner width of a dense layer.
        activation: `swiglu` has two input products, `squared_relu` one.
        attention: which attention the FLOP formula has to price; `other` (linear, sparse, Mamba hybrids) is not priced.
        moe_latent_size: width in which rows travel and experts compute, when it is not `hidden` (LatentMoE).
        missing: names of sizes the source does not give; they are None here.
        source: `repo@commit:path` or the file that was read.

    Raises:
        WorkloadError: sizes that contradict each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str = ""
    hidden: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_moe_layers: int = Field(gt=0)
    num_experts: int = Field(gt=0)
    topk: int = Field(gt=0)
    moe_ffn_hidden: int = Field(gt=0)
    shared_expert_ffn_hidden: int = Field(default=0, ge=0)
    ffn_hidden: int | None = None
    activation: Activation = "swiglu"
    attention: Attention = "gqa"
    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    kv_channels: int | None = None
    vocab_size: int | None = None
    router: RouterShape = RouterShape()
    mla: MlaShape | None = None
    moe_latent_size: int | None = None
    mtp_layers: int = Field(default=0, ge=0)
    notes: str = ""
    source: str = ""
    missing: tuple[str, ...] = ()

    @property
    def dispatch_width(self) -> int:
        """Elements of one dispatched row: the latent size where there is one, else `hidden`."""
        return self.moe_latent_size or self.hidden

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        if self.topk > self.num_experts:
            raise WorkloadError(
                f"{self.name}: topk={self.topk} is larger than num_experts={self.num_experts}",
                "a token cannot pick more experts than there are; lower topk",
            )
        if self.num_moe_layers > self.num_layers:
            raise WorkloadError(
                f"{self.name}: num_moe_layers={self.num_moe_layers} exceeds num_layers={self.num_layers}"
            )
        if (self.mla is not None) != (self.attention == "mla"):
            raise WorkloadError(f"{self.name}: attention={self.attention} and mla sizes must be given together")
        check_groups(self.num_experts, self.topk, self.router.num_groups, self.router.group_topk, self.name)
        return self


def check_groups(
    num_experts: int, topk: int, num_groups: int | None, group_topk: int | None, name: str = "routing"
) -> None:
    """Refuse group-limited routing that cannot pick `topk` experts.

    Raises:
        WorkloadError: G does not divide E, g is outside 1..G, only one is given, or g groups hold fewer than K experts.
    """
    if num_groups is None and group_topk is None:
        return
    if num_groups is None or group_topk is None:
        raise WorkloadError(f"{name}: num_groups={num_groups} and group_topk={group_topk} must be given together")
    if num_groups < 1 or num_experts % num_groups:
        raise WorkloadError(f"{name}: num_groups={num_groups} does not divide num_experts={num_experts}")
    if not 1 <= group_topk <= num_groups:
        raise WorkloadError(f"{name}: group_topk={group_topk} must be between 1 and num_groups={num_groups}")
    if group_topk * (num_experts // num_groups) < topk:
        raise WorkloadError(
            f"{name}: {group_topk} groups of {num_experts // num_groups} experts hold fewer than topk={topk}",
            "raise group_topk or lower topk",
        )
