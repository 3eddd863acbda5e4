"""A full MoE layer, forward and backward, on one GPU, against the grouped products alone in the same run.

Qwen3-30B-A3B, 4096 tokens: EP 1 (128 experts, top-8), and the expert load of one of 16 EP ranks (8 experts, as many
rows). `outside` is the share of the layer's time that is not the six grouped products, timed alone on the same rows.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from gpu_permute import versions
from gpu_timing import hardware, interleaved_us
from moe_dispatch.core.registry import get_backend, load_target
from moe_dispatch.moe.layer import MoELayer
from moe_dispatch.workload.catalogue import find_model
from moe_dispatch.workload.flops import moe_layer_flops
from moe_dispatch.workload.model import ModelShape

TOKENS = 4096
LOADS = {"ep1": {}, "ep16_rank": {"num_experts": 8}}
"""Name -> changes of the shape."""


def main() -> int:
    """Measure both loads, print a table, end with the RESULT line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20, help="measurements of each entry")
    parser.add_argument("--dispatcher", default="alltoall", help="a backend that runs on one rank")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    figures: dict[str, float] = {}
    for name, changes in LOADS.items():
        figures |= measure(name, find_model("qwen3-30b-a3b").model_copy(update=changes), arguments)
    dist.destroy_process_group()
    result = {"figures": figures, "hardware": hardware(), "versions": versions(), "labels": ["cold_l2", "bf16"]}
    print("RESULT", json.dumps(result))
    return 0


def measure(name: str, shape: ModelShape, arguments: argparse.Namespace) -> dict[str, float]:
    """One load."""
    torch.manual_seed(0)
    target = load_target(get_backend(arguments.dispatcher))
    device = torch.device("cuda", 0)
    dispatcher = target(
        dist.group.WORLD, shape.num_experts, shape.dispatch_width, shape.topk, TOKENS, torch.bfloat16, device, {}
    )
    layer = MoELayer(shape, dispatcher)
    x = torch.randn(TOKENS, shape.hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(x)
    logits = torch.randn(TOKENS, shape.num_experts, device=device)

    def whole() -> None:
        layer(x, logits_override_TE=logits).backward(grad)

    work: dict[str, Callable[[], object]] = {"layer": whole, "grouped": grouped_products(layer, shape, device)}
    us = interleaved_us(work, arguments.rounds, head_start_us=20_000)
    flops = moe_layer_flops(shape).routed * 3 * TOKENS
    rates = {key: flops / value * 1e-6 for key, value in us.items()}
    outside = 1 - us["grouped"] / us["layer"]
    print(
        f"{name}: layer {us['layer']:.0f} us ({rates['layer']:.0f} TFLOP/s), grouped products {us['grouped']:.0f} us "
        f"({rates['grouped']:.0f} TFLOP/s), outside {outside:.1%}"
    )
    dispatcher.close()
    return {
        f"{name}_layer_us": round(us["layer"], 1),
        f"{name}_grouped_us": round(us["grouped"], 1),
        f"{name}_layer_tflops": round(rates["layer"], 1),
        f"{name}_grouped_tflops": round(rates["grouped"], 1),
        f"{name}_outside_share": round(outside, 4),
    }


def grouped_products(layer: MoELayer, shape: ModelShape, device: torch.device) -> Callable[[], object]:
    """Both products of the experts, forward and backward, on as many evenly spread rows."""
    rows = TOKENS * shape.topk
    ends = (torch.arange(1, shape.num_experts + 1, device=device) * rows // shape.num_experts).int()
    x = torch.randn(rows, shape.hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
    y = torch.randn(rows, shape.moe_ffn_hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
    up, down = layer.experts.w1_eHP, layer.experts.w2_eFH
    up_grad = torch.randn(rows, up.shape[2], device=device, dtype=torch.bfloat16)
    down_grad = torch.randn(rows, shape.hidden, device=device, dtype=torch.bfloat16)

    def run() -> None:
        torch.nn.functional.grouped_mm(x, up, offs=ends).backward(up_grad)
        torch.nn.functional.grouped_mm(y, down, offs=ends).backward(down_grad)

    return run


if __name__ == "__main__":
    raise SystemExit(main())
