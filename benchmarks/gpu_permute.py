"""Permute, unpermute, both backwards and the routing map on one GPU, against a same-size copy and importable peers.

Every figure is a median of one run in which all entries take turns with a cold L2. `share of copy` is (unique bytes
read + bytes written) / time over the same for a device copy that moves as many bytes. Peers: PyTorch's own indexing,
and Megatron-Core's unfused permute and unpermute where `megatron.core` can be imported.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from importlib import metadata

import torch

from gpu_timing import hardware, interleaved_us
from moe_dispatch.dispatch.kernels import move
from moe_dispatch.dispatch.kernels.routing_map import routing_map as launch_map
from moe_dispatch.dispatch.permute import RoutingMap, permute_fp8, routing_map

SHAPES = [(4096, 2048, 128), (16384, 2048, 128), (8192, 4096, 128), (4096, 7168, 256)]
"""(tokens, hidden, experts)."""
TOPK = 8
PACKAGES = ("torch", "triton", "moe-dispatch", "megatron-core")


def main() -> int:
    """Measure all shapes, print tables, end with the RESULT line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=30, help="measurements of each entry")
    rounds = parser.parse_args().rounds
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    figures: dict[str, float] = {}
    for tokens, hidden, experts in SHAPES:
        figures |= measure(tokens, hidden, experts, rounds)
    result = {"figures": figures, "hardware": hardware(), "versions": versions(), "labels": ["cold_l2", "bf16", "top8"]}
    print("RESULT", json.dumps(result))
    return 0


def measure(tokens: int, hidden: int, experts: int, rounds: int) -> dict[str, float]:
    """One shape: a table, and its figures by name."""
    torch.manual_seed(0)
    ids = torch.rand(tokens, experts, device="cuda").topk(TOPK, dim=1).indices
    where = routing_map(ids, experts)
    rows = tokens * TOPK
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16)
    weight = torch.rand(tokens, TOPK, device="cuda")
    one_way = (tokens + rows) * hidden * x.element_size()
    source = torch.empty(one_way // 2, dtype=torch.uint8, device="cuda")
    work: dict[str, Callable[[], object]] = {"copy": source.clone}
    work |= ours(ids.view(-1), experts, where, x, y, weight)
    work |= peers(ids, where, x, y, weight, experts)
    us = interleaved_us(work, rounds)
    ceiling = one_way / us["copy"]
    key = f"t{tokens}_h{hidden}_e{experts}"
    print(f"\n{tokens} tokens, hidden {hidden}, {experts} experts, top-{TOPK}, bf16; copy {ceiling * 1e-3:.0f} GB/s")
    figures = {f"{key}_copy_gbps": round(ceiling * 1e-3, 1)}
    for name, value in us.items():
        moved = moved_bytes(name, tokens, rows, hidden, x.element_size())
        share = moved / value / ceiling if moved else None
        print(f"  {name:<34}{value:>9.1f} us" + (f"{share:>8.1%} of copy" if share else ""))
        figures[f"{key}_{name}_us"] = round(value, 2)
        if share:
            figures[f"{key}_{name}_share_of_copy"] = round(share, 4)
    return figures


def moved_bytes(name: str, tokens: int, rows: int, hidden: int, width: int) -> int | None:
    """Unique bytes read plus bytes written by an entry; None where there is no such count."""
    if name in ("permute", "permute_backward", "unpermute", "unpermute_plain", "unpermute_plain_backward"):
        return (tokens + rows) * hidden * width
    if name == "unpermute_backward":  # reads gradients and rows, writes rows
        return (tokens + 2 * rows) * hidden * width
    if name == "permute_fp8":
        return tokens * hidden * width + rows * hidden + rows * (-(-hidden // move.FP8_BLOCK)) * 4
    return None


def ours(
    ids: torch.Tensor, experts: int, where: RoutingMap, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """The kernels by name; allocation of results is part of each."""
    position = where.position_TK
    return {
        "routing_map": lambda: launch_map(ids, experts),
        "permute": lambda: move.scatter_rows(x, position, torch.empty_like(y)),
        "permute_backward": lambda: move.sum_slots(y, position, torch.empty_like(x)),
        "unpermute": lambda: move.sum_slots(y, position, torch.empty_like(x), weight),
        "unpermute_plain": lambda: move.sum_slots(y, position, torch.empty_like(x)),
        "unpermute_backward": lambda: move.scatter_weighted(x, y, weight, position, torch.empty_like(y)),
        "unpermute_plain_backward": lambda: move.scatter_rows(x, position, torch.empty_like(y)),
        "permute_fp8": lambda: permute_fp8(x, where),
    }


def peers(
    ids: torch.Tensor, where: RoutingMap, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, experts: int
) -> dict[str, Callable[[], object]]:
    """PyTorch, and Megatron-Core where it is installed. Correct first: each must give what our kernels give."""
    order = torch.argsort(ids.view(-1), stable=True)
    token = order // TOPK
    position = where.position_TK.long()
    found: dict[str, Callable[[], object]] = {
        "torch_argsort": lambda: torch.argsort(ids.view(-1), stable=True),
        "torch_permute_index_select": lambda: x.index_select(0, token),
        "torch_unpermute_gather_sum": lambda: y[position].sum(1),
    }
    assert torch.equal(x.index_select(0, token), move.scatter_rows(x, where.position_TK, torch.empty_like(y)))
    try:
        from megatron.core.transformer.moe.moe_utils import permute, unpermute
    except ImportError as error:
        print(f"Megatron-Core is not compared: {error}")
        return found
    routing = torch.zeros(ids.shape[0], experts, dtype=torch.bool, device="cuda").scatter_(1, ids, True)
    probs = torch.zeros(ids.shape[0], experts, device="cuda").scatter_(1, ids, weight)
    rows, *_, sorted_indices = permute(x, routing, num_out_tokens=ids.numel())[:3]
    assert torch.equal(rows, x.index_select(0, token))
    found["megatron_permute"] = lambda: permute(x, routing, num_out_tokens=ids.numel())
    found["megatron_unpermute"] = lambda: unpermute(y, sorted_indices, x.shape)
    found["megatron_unpermute_weighted"] = lambda: unpermute(
        y, sorted_indices, x.shape, probs=probs, routing_map=routing
    )
    return found


def versions() -> dict[str, str]:
    """Of what decides the figures."""
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    installed = {distribution.name: distribution.version for distribution in metadata.distributions()}
    return found | {name: installed[name] for name in PACKAGES if name in installed}


if __name__ == "__main__":
    raise SystemExit(main())
