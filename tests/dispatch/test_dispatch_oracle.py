"""Every dispatcher against the oracle, over group sizes, domains, dtypes and shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks

from moe_dispatch.dispatch.allgather import AllGatherDispatcher
from moe_dispatch.dispatch.alltoall import AllToAllDispatcher
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.dispatch.hierarchical import HierarchicalDispatcher
from moe_dispatch.dispatch.hierarchical_grouped import GroupedExchange
from moe_dispatch.dispatch.reference import check_dispatcher

pytestmark = pytest.mark.gloo

CLASSES: dict[str, type[Dispatcher]] = {
    "alltoall": AllToAllDispatcher,
    "allgather": AllGatherDispatcher,
    "hierarchical": HierarchicalDispatcher,
}
# (name, knobs, ranks)
ARMS: list[tuple[str, dict[str, Any], int]] = [
    ("alltoall", {"form": "collective"}, 4),
    ("alltoall", {"form": "p2p"}, 4),
    ("alltoall", {}, 1),
    ("allgather", {}, 4),
    ("allgather", {}, 1),
    ("hierarchical", {}, 4),
    ("hierarchical", {}, 1),
    ("hierarchical", {"domain_size": 2, "chunks": 1}, 4),
    ("hierarchical", {"domain_size": 2, "chunks": 5}, 4),
    ("hierarchical", {"domain_size": 1, "chunks": 2}, 4),
    ("hierarchical", {"domain_size": 2, "chunks": 2}, 6),
    ("hierarchical", {"domain_size": 4, "chunks": 3}, 8),
]
# experts a rank, hidden, top-k (None: all experts), max tokens
SHAPES = [(4, 64, 3, 48), (1, 5, 1, 20), (2, 33, None, 12)]


def _oracle(rank: int, world: int, name: str, knobs: dict[str, Any]) -> list[tuple[str, bool, str]]:
    results = []
    for local, hidden, topk, tokens in SHAPES:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            experts = local * world
            k = experts if topk is None else min(topk, experts)
            dispatcher = CLASSES[name](dist.group.WORLD, experts, hidden, k, tokens, dtype, "cpu", knobs)
            for seed in (1, 2) if dtype is torch.bfloat16 else (1,):  # the second pass reuses the buffers of the first
                report = check_dispatcher(dispatcher, seed)
                results.append((f"{hidden} {k} {dtype} seed {seed}", report.passed, report.detail))
            dispatcher.close()
    return results


@pytest.mark.parametrize(("name", "knobs", "world"), ARMS)
def test_passes_the_oracle(name: str, knobs: dict[str, Any], world: int) -> None:
    for results in run_ranks(_oracle, world, name, knobs):
        assert len(results) == len(SHAPES) * 4
        assert [r for r in results if not r[1]] == []


def _subgroups(rank: int, world: int, strided: bool) -> list[bool]:
    members = [[0, 2], [1, 3]] if strided else [[0, 1], [2, 3]]
    groups = [dist.new_group(m) for m in members]
    mine = next(g for g, m in zip(groups, members, strict=True) if rank in m)
    passed = []
    for cls in CLASSES.values():
        dispatcher = cls(mine, 8, 16, 2, 24, torch.float32, "cpu", {})
        passed.append(check_dispatcher(dispatcher, 3 + rank % 2 if strided else 3).passed)
    return passed


@pytest.mark.parametrize("strided", [False, True])
def test_two_expert_parallel_groups_at_once(strided: bool) -> None:
    assert run_ranks(_subgroups, 4, strided) == [[True] * 3] * 4


def _grouped(rank: int, world: int, domain_size: int) -> tuple[bool, str]:
    """The executor that NCCL gets, driven over gloo."""
    knobs: dict[str, Any] = {"domain_size": domain_size, "chunks": 1}
    dispatcher = HierarchicalDispatcher(dist.group.WORLD, 4 * world, 64, 4, 40, torch.bfloat16, "cpu", knobs)
    dispatcher._exchange = GroupedExchange(dist.group.WORLD, dispatcher.domains, dispatcher.pool, 64, torch.bfloat16)
    report = check_dispatcher(dispatcher, 3)
    return report.passed, report.detail


@pytest.mark.parametrize(("world", "domain_size"), [(1, 1), (4, 4), (4, 2), (4, 1), (6, 2)])
def test_grouped_executor_passes_the_oracle(world: int, domain_size: int) -> None:
    assert run_ranks(_grouped, world, domain_size) == [(True, "")] * world
