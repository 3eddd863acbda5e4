import pytest

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.catalogue import find_model
from moe_dispatch.workload.flops import model_flops_per_step, moe_layer_flops, tflops_per_gpu
from moe_dispatch.workload.model import MlaShape, ModelShape

AVERAGING_TOLERANCE = 1e-4
"""A published pair averages time and throughput apart; mean(1/t) * mean(t) - 1 is about (sd/mean)^2: 1e-4 at 1 %.
The printed digits (2e-6) add nothing to that."""

PRINTED_DECIMAL = 0.05
"""Megatron-LM prints TFLOP/s with one decimal: half a unit."""

PRINTED_MS = 0.05
"""and milliseconds with one decimal."""


def test_moe_layer_by_hand():
    flops = moe_layer_flops(find_model("qwen3-30b-a3b"))
    # 8 experts, three products of 2048 x 768, two operations for each multiply-add
    assert flops.routed == 8 * 3 * 2 * 2048 * 768
    assert flops.shared == flops.latent == 0
    assert flops.forward_backward == 3 * flops.forward == 3 * 75_497_472
    assert flops.router == 2 * 2048 * 128
    latent = moe_layer_flops(find_model("nemotron-3-super-120b-a12b"))
    assert latent.routed == 22 * 2 * 2 * 1024 * 2688
    assert latent.shared == 2 * 2 * 4096 * 5376
    assert latent.latent == 2 * 2 * 4096 * 1024


def test_published_step_of_qwen3_30b_on_16_h100():
    # NVIDIA-NeMo/Megatron-Bridge@067f987:docs/training/moe-optimization.md: 20.14729 s, 299.352 TFLOP/s for each GPU
    step = model_flops_per_step(find_model("qwen3-30b-a3b"), 4096, 1024)
    assert tflops_per_gpu(step, 20.14729, 16) == pytest.approx(299.352, rel=AVERAGING_TOLERANCE)


@pytest.mark.parametrize(("milliseconds", "printed"), [(571.1, 51.7), (666.9, 44.3), (803.0, 36.8)])
def test_lines_that_megatron_lm_printed(milliseconds, printed):
    # Megatron-LM on two GPUs: 4 layers, 32 experts, top-8, sequence 2048, batch 16, multi-head attention
    shape = ModelShape(
        name="log",
        hidden=2048,
        num_layers=4,
        num_moe_layers=4,
        num_experts=32,
        topk=8,
        moe_ffn_hidden=768,
        num_attention_heads=16,
        num_query_groups=16,
        kv_channels=128,
        vocab_size=32000,
    )
    rate = tflops_per_gpu(model_flops_per_step(shape, 2048, 16), milliseconds / 1e3, 2)
    assert abs(rate - printed) <= PRINTED_DECIMAL + rate * PRINTED_MS / milliseconds


def test_mla_with_dense_layers_and_mtp_by_hand():
    mla = MlaShape(q_lora_rank=6, kv_lora_rank=4, qk_head_dim=8, qk_pos_emb_head_dim=2, v_head_dim=8)
    shape = ModelShape(
        name="hand",
        hidden=16,
        num_layers=3,
        num_moe_layers=2,
        num_experts=4,
        topk=2,
        moe_ffn_hidden=5,
        shared_expert_ffn_hidden=7,
        ffn_hidden=32,
        attention="mla",
        num_attention_heads=2,
        vocab_size=100,
        mla=mla,
        mtp_layers=1,
    )
    queries = 6 * (16 + 2 * 10 + 1)
    keys_values = 4 * (16 + 2 * (8 + 8) + 1) + 16 * 2
    per_layer = 6 * (queries + keys_values + 2 * 8 * 16)
    core = 6 * (2 * 10 / 2 + 2 * 8 / 2)
    dense = 6 * 16 * 32 * 3
    moe = 6 * 16 * 3 * (5 * 2 + 7) * 3  # two layers and the MTP layer
    token = dense + moe + 4 * per_layer + 6 * (3 * 16 + 2 * 16**2) + 6 * 16 * 128 * 2
    assert model_flops_per_step(shape, 10, 3) == 30 * token + 300 * core * 4


def test_what_the_formula_does_not_price_is_refused():
    with pytest.raises(WorkloadError, match="is not priced"):
        model_flops_per_step(find_model("qwen3-next-80b-a3b"), 4096, 1)
    with pytest.raises(WorkloadError, match="vocabulary size is unknown"):
        model_flops_per_step(find_model("nemotron-3-nano-30b-a3b"), 4096, 1)
