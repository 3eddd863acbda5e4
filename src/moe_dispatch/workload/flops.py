"""Floating-point operations of a MoE layer and of a training step, counted as Megatron-LM counts them.

Source of the formulas: NVIDIA/Megatron-LM@d98e8a64:megatron/training/training.py, `num_floating_point_operations` (its
throughput line is step FLOPs / (seconds x ranks)); Megatron-Bridge's flop_utils.py has the same core. A product of
[m, n] by [n, p] costs 2mnp; backward costs twice forward; recomputation, padding and dropped tokens are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.model import ModelShape

FORWARD_BACKWARD = 3
"""Forward once, backward twice (gradients of inputs and of weights)."""


@dataclass(frozen=True, kw_only=True)
class MoeLayerFlops:
    """Forward FLOPs of one MoE layer for one token.

    Fields:
        routed: the K experts; shared: the shared experts; latent: projections to and from the latent width.
        router: the logits; Megatron leaves them out of its count, so they are not in `forward`.
    """

    routed: int
    shared: int
    latent: int
    router: int

    @property
    def forward(self) -> int:
        """Forward FLOPs that Megatron counts."""
        return self.routed + self.shared + self.latent

    @property
    def forward_backward(self) -> int:
        """Forward and backward FLOPs that Megatron counts."""
        return FORWARD_BACKWARD * self.forward


def moe_layer_flops(model: ModelShape) -> MoeLayerFlops:
    """FLOPs of one MoE layer for one token.

    routed = 2 * f * K * moe_ffn * width, shared = 2 * f * shared_ffn * hidden, latent = 4 * hidden * latent, with f = 3
    products for SwiGLU and 2 without a gate; width is the latent size where there is one, else hidden.
    """
    products = 3 if model.activation == "swiglu" else 2
    return MoeLayerFlops(
        routed=2 * products * model.topk * model.moe_ffn_hidden * model.dispatch_width,
        shared=2 * products * model.shared_expert_ffn_hidden * model.hidden,
        latent=4 * model.hidden * model.moe_latent_size if model.moe_latent_size else 0,
        router=2 * model.hidden * model.num_experts,
    )


def model_flops_per_step(
    model: ModelShape,
    seq_length: int,
    global_batch: int,
    *,
    vocab_padded: int | None = None,
    mtp_layers: int | None = None,
) -> float:
    """Forward and backward FLOPs of one training step over all ranks.

    T * (dense + MoE + attention projections + MTP + logits) + T * seq * attention core, with T = seq * global batch and
    the causal half of the attention core counted.

    Args:
        vocab_padded: rows of the output matrix; default the vocabulary rounded up to a multiple of 128.
        mtp_layers: default the model's; recipes may train without them.

    Raises:
        WorkloadError: attention that the formula does not price (hybrids), or sizes the shape lacks.
    """
    hidden, mtp = model.hidden, model.mtp_layers if mtp_layers is None else mtp_layers
    if model.vocab_size is None and vocab_padded is None:
        raise WorkloadError(f"{model.name}: the vocabulary size is unknown", "give vocab_padded")
    vocab = vocab_padded if vocab_padded is not None else -(-(model.vocab_size or 0) // 128) * 128
    projections, core = _attention_flops(model)
    layers, moe_layers = model.num_layers + mtp, model.num_moe_layers + mtp
    dense_layers = layers - moe_layers
    if dense_layers and model.ffn_hidden is None:
        raise WorkloadError(
            f"{model.name}: ffn_hidden of the dense layers is unknown", "describe the shape in a YAML file"
        )
    products = 3 if model.activation == "swiglu" else 2
    dense = 2 * FORWARD_BACKWARD * products * hidden * (model.ffn_hidden or 0) * dense_layers
    moe = moe_layer_flops(model).forward_backward * moe_layers
    mtp_extra = 6 * mtp * (3 * hidden + 2 * hidden**2)
    logits = 6 * hidden * vocab * (mtp + 1)
    tokens = float(seq_length) * global_batch
    return tokens * (dense + moe + projections * layers + mtp_extra + logits) + tokens * seq_length * core * layers


def tflops_per_gpu(step_flops: float, step_seconds: float, ranks: int) -> float:
    """Throughput as Megatron prints it: step FLOPs / (seconds * ranks), in TFLOP/s."""
    return step_flops / (step_seconds * ranks) / 1e12


def _attention_flops(model: ModelShape) -> tuple[int, int]:
    """Forward and backward FLOPs of one layer: (projections per token, core per token and position)."""
    hidden, heads, mla = model.hidden, model.num_attention_heads, model.mla
    if model.attention == "other":
        raise WorkloadError(
            f"{model.name}: its attention (linear, sparse or Mamba hybrid) is not priced by the step FLOP formula",
            "use the MoE layer FLOPs, or compare step times",
        )
    if heads is None:
        raise WorkloadError(f"{model.name}: num_attention_heads is unknown", "pass the model's config.json")
    if mla is not None:
        head = mla.qk_head_dim + mla.qk_pos_emb_head_dim
        query = hidden * heads * head
        if mla.q_lora_rank is not None:
            query = mla.q_lora_rank * (hidden + heads * head + 1)
        latent = mla.kv_lora_rank * (hidden + heads * (mla.qk_head_dim + mla.v_head_dim) + 1)
        projections = query + latent + hidden * mla.qk_pos_emb_head_dim + heads * mla.v_head_dim * hidden
        return 6 * projections, 3 * heads * (head + mla.v_head_dim)
    if model.kv_channels is None or model.num_query_groups is None:
        raise WorkloadError(f"{model.name}: kv_channels or num_query_groups is unknown", "pass the model's config.json")
    query = model.kv_channels * heads
    key_value = model.kv_channels * model.num_query_groups
    return 6 * hidden * (2 * query + 2 * key_value), 6 * query
