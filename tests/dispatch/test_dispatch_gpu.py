"""Dispatchers over NCCL on CUDA: one rank everywhere; several ranks where each has a GPU or NCCL can share one.

Several ranks share one GPU only with NCCL 2.30 or newer, `NCCL_MULTI_RANK_GPU_ENABLE=1` and the MPS daemon.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks

from moe_dispatch.core.registry import get_backend, load_target
from moe_dispatch.dispatch.reference import check_dispatcher

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

ARMS: list[tuple[str, dict[str, Any]]] = [
    ("alltoall", {"form": "collective"}),
    ("alltoall", {"form": "p2p"}),
    ("allgather", {}),
    ("hierarchical", {}),
    ("hierarchical", {"domain_size": 1}),
    ("hierarchical", {"domain_size": 2}),
]


def _oracle(rank: int, world: int) -> list[tuple[str, bool, str]]:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl", device_id=device)
    results = []
    for name, knobs in ARMS:
        if world % int(knobs.get("domain_size", 1)):
            continue
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            dispatcher = load_target(get_backend(name))(group, 4 * world, 192, 3, 48, dtype, device, knobs)
            report = check_dispatcher(dispatcher, 1)
            results.append((f"{name} {knobs} {dtype}", report.passed, report.detail))
            dispatcher.close()
    torch.cuda.synchronize()
    return results


def _worlds() -> list[int]:
    shared = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    return [1, *(w for w in (2, 4) if shared or torch.cuda.device_count() >= w)]


@pytest.mark.parametrize("world", _worlds())
def test_passes_the_oracle_over_nccl(world: int) -> None:
    for results in run_ranks(_oracle, world):
        assert results
        assert [r for r in results if not r[1]] == []
