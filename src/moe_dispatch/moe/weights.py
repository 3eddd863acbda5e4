"""Initial weights that depend only on (seed, global expert id): every EP size and dispatcher measures the same layer.

Drawing billions of normals on every launch would cost more than the measurement. One pool of normals is drawn and each
expert reads it cyclically from its own start; the pool's length is prime, so no row or column repeats in step with a
matrix. These are weights to measure and to compare with, not to start a training from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

POOL = 1048583
"""Length of the pool of normals, a prime just above 2**20."""

SHARED_EXPERT = 1 << 20
"""Id under which the shared expert and the latent projections draw, above every routed expert's."""


@torch.no_grad()
def fill_weights(weights: torch.Tensor, expert_ids: Sequence[int], *, seed: int, salt: int, scale: float) -> None:
    """Fill weights[i] for the expert with global id expert_ids[i].

    Args:
        weights: contiguous [e, ...], any floating dtype and device; changed in place.
        salt: tells the tensors of one expert apart.
        scale: standard deviation.
    """
    pool = (_pool(seed) * scale).to(device=weights.device, dtype=weights.dtype)
    for index, expert in enumerate(expert_ids):
        flat = weights[index].view(-1)
        start = (expert * 7919 + salt * 611953) % POOL
        turned = torch.roll(pool, -start)
        for begin in range(0, flat.numel(), POOL):
            part = flat[begin : begin + POOL]
            part.copy_(turned[: part.numel()])


@lru_cache(maxsize=2)
def _pool(seed: int) -> torch.Tensor:
    return torch.randn(POOL, generator=torch.Generator().manual_seed(seed))


def replicated_weight(
    inputs: int, outputs: int, *, dtype: torch.dtype, device: torch.device | str, seed: int, salt: int
) -> torch.nn.Parameter:
    """A matrix [inputs, outputs] that every rank holds alike, with standard deviation inputs**-0.5."""
    weight = torch.nn.Parameter(torch.empty(inputs, outputs, dtype=dtype, device=device))
    fill_weights(weight.unsqueeze(0), [SHARED_EXPERT], seed=seed, salt=salt, scale=inputs**-0.5)
    return weight
