"""A workload's sizes and layout as Megatron-LM arguments; flag names of NVIDIA/Megatron-LM@d98e8a64:megatron/training.

Sizes only: what else a model's training script sets (normalisation variants, attention windows, data) stays with it.
"""

from __future__ import annotations

from moe_dispatch.workload.model import ModelShape
from moe_dispatch.workload.workload import Workload

PRECISION_ARGS = {
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp32": (),
    "fp8": ("--bf16", "--fp8-format", "hybrid"),
}


def parallel_args(workload: Workload) -> list[str]:
    """Parallel sizes and batch."""
    layout = workload.layout
    args = [
        *_pairs(
            ("--tensor-model-parallel-size", layout.tp),
            ("--pipeline-model-parallel-size", layout.pp),
            ("--context-parallel-size", layout.cp),
            ("--expert-model-parallel-size", layout.ep),
            ("--expert-tensor-parallel-size", layout.expert_tp),
        )
    ]
    if layout.vpp > 1:
        args += ["--num-virtual-stages-per-pipeline-rank", str(layout.vpp)]
    if layout.uses_sequence_parallel:
        args.append("--sequence-parallel")
    return args + _pairs(
        ("--seq-length", workload.seq_length),
        ("--max-position-embeddings", workload.seq_length),
        ("--micro-batch-size", workload.micro_batch),
        ("--global-batch-size", workload.global_batch),
    )


def model_args(model: ModelShape) -> tuple[list[str], list[str]]:
    """Arguments for the shape, and notes on what they cannot say.

    A model whose attention the shape does not describe, or that lacks a size, gives no arguments and one note.
    """
    sizes = (model.num_attention_heads, model.vocab_size)
    if (
        model.attention == "other"
        or None in sizes
        or (model.num_moe_layers < model.num_layers and not model.ffn_hidden)
    ):
        return [], [
            f"{model.name}: its sizes do not describe the whole model; add its own model arguments to every arm"
        ]
    args = [
        "--transformer-impl",
        "transformer_engine",
        *_pairs(
            ("--num-layers", model.num_layers),
            ("--hidden-size", model.hidden),
            ("--ffn-hidden-size", model.ffn_hidden or model.moe_ffn_hidden),
            ("--num-attention-heads", model.num_attention_heads),
        ),
        *_attention_args(model),
        *("--normalization", "RMSNorm", "--position-embedding-type", "rope"),
        *("--disable-bias-linear", "--untie-embeddings-and-output-weights"),
        *(("--swiglu",) if model.activation == "swiglu" else ("--squared-relu",)),
        *("--tokenizer-type", "NullTokenizer", "--vocab-size", str(model.vocab_size)),
        *_expert_args(model),
        *_router_args(model),
    ]
    if model.mtp_layers:
        args += ["--mtp-num-layers", str(model.mtp_layers)]
    return args, [
        f"the model arguments are the sizes of {model.name}; add what else your training script sets, in every arm"
    ]


def _attention_args(model: ModelShape) -> list[str]:
    if model.mla is not None:
        mla = model.mla
        return [
            "--multi-latent-attention",
            *_pairs(
                ("--q-lora-rank", mla.q_lora_rank),
                ("--kv-lora-rank", mla.kv_lora_rank),
                ("--qk-head-dim", mla.qk_head_dim),
                ("--qk-pos-emb-head-dim", mla.qk_pos_emb_head_dim),
                ("--v-head-dim", mla.v_head_dim),
            ),
        ]
    args = _pairs(("--kv-channels", model.kv_channels))
    if model.num_query_groups:
        args += ["--group-query-attention", "--num-query-groups", str(model.num_query_groups)]
    return args


def _expert_args(model: ModelShape) -> list[str]:
    args = _pairs(
        ("--num-experts", model.num_experts),
        ("--moe-ffn-hidden-size", model.moe_ffn_hidden),
        ("--moe-shared-expert-intermediate-size", model.shared_expert_ffn_hidden or None),
        ("--moe-latent-size", model.moe_latent_size),
    )
    dense = model.num_layers - model.num_moe_layers
    if dense:
        args += ["--moe-layer-freq", f"([0]*{dense}+[1]*{model.num_moe_layers})"]
    return [*args, "--moe-grouped-gemm"]


def _router_args(model: ModelShape) -> list[str]:
    router = model.router
    args = _pairs(
        ("--moe-router-topk", model.topk),
        ("--moe-router-score-function", router.score_function),
        ("--moe-router-num-groups", router.num_groups),
        ("--moe-router-group-topk", router.group_topk),
        ("--moe-router-topk-scaling-factor", router.scaling_factor if router.scaling_factor != 1.0 else None),
    )
    if router.expert_bias:
        args.append("--moe-router-enable-expert-bias")
    if router.score_function == "softmax" and (model.topk == 1 or not router.normalize_topk):
        args.append("--moe-router-pre-softmax")
    return args


def _pairs(*items: tuple[str, int | float | str | None]) -> list[str]:
    return [part for flag, value in items if value is not None for part in (flag, str(value))]
