"""Data parallelism folded over the expert-parallel ranks: experts are sharded over EP, everything else is replicated.

Every rank scales its loss by 1 / (ranks x micro-batches), so plain sums give gradients of the mean over the global
batch: over all ranks for what is replicated, and for an expert over the ranks that hold the same expert (the tokens of
its own EP group have reached it already).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from moe_dispatch.core.errors import UsageError

_BUCKET_ELEMENTS = 1 << 20
"""Smaller gradients are joined into one all-reduce of about this size."""


@dataclass(frozen=True)
class Groups:
    """Process groups of one rank.

    Fields:
        world: all ranks; expert: those that share the experts; replicas: those that hold the same experts, None where
            this rank is the only one.
    """

    world: dist.ProcessGroup
    expert: dist.ProcessGroup
    replicas: dist.ProcessGroup | None


def make_groups(world: dist.ProcessGroup, ep: int) -> Groups:
    """Divide the default group's ranks into EP groups of consecutive ranks; collective over all of them.

    Raises:
        UsageError: EP does not divide the ranks.
    """
    size, rank = dist.get_world_size(world), dist.get_rank(world)
    if ep < 1 or size % ep:
        raise UsageError(f"EP={ep} does not divide the {size} ranks", "choose a divisor of the number of ranks")
    if ep == size:
        return Groups(world=world, expert=world, replicas=None)
    expert = [dist.new_group(list(range(first, first + ep))) for first in range(0, size, ep)]
    replicas = [dist.new_group(list(range(first, size, ep))) for first in range(ep)]
    mine, same = expert[rank // ep], replicas[rank % ep]
    assert mine is not None
    assert same is not None
    return Groups(world=world, expert=mine, replicas=same)


def sum_over(group: dist.ProcessGroup | None, tensors: Sequence[torch.Tensor]) -> None:
    """Sum each tensor over the group in place, small ones joined; collective. No group: nothing to do."""
    if group is None or dist.get_world_size(group) == 1:
        return
    bucket: list[torch.Tensor] = []
    filled = 0
    for tensor in tensors:
        if tensor.numel() >= _BUCKET_ELEMENTS:
            dist.all_reduce(tensor, group=group)
            continue
        bucket.append(tensor)
        filled += tensor.numel()
        if filled >= _BUCKET_ELEMENTS:
            _sum_joined(group, bucket)
            bucket, filled = [], 0
    if bucket:
        _sum_joined(group, bucket)


def _sum_joined(group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> None:
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(joined, group=group)
    for tensor, part in zip(tensors, joined.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
