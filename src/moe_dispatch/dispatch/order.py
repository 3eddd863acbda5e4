"""Stable ordering of small integer keys: the sort behind every permutation of (token, expert) pairs."""

from __future__ import annotations

import numpy as np
import torch


def stable_order(keys_N: torch.Tensor, upper: int) -> torch.Tensor:
    """Positions that sort `keys_N` ascending, equal keys in their original order; int64, same device.

    Args:
        keys_N: integers in [0, upper].
        upper: largest key. At or below 32,767 the CPU uses numpy's radix sort, which beats a comparison sort.
    """
    if keys_N.device.type != "cpu":
        return torch.argsort(keys_N, stable=True)
    narrow: type[np.integer] = np.uint8 if upper <= 255 else np.int16 if upper <= 32_767 else np.int64
    return torch.from_numpy(np.argsort(keys_N.numpy().astype(narrow, copy=False), kind="stable"))


def inverse_order(order_N: torch.Tensor, size: int | None = None) -> torch.Tensor:
    """inverse[order[i]] = i; entries that `order` does not name hold -1. int64, same device."""
    inverse = order_N.new_full((order_N.numel() if size is None else size,), -1)
    inverse[order_N] = torch.arange(order_N.numel(), device=order_N.device)
    return inverse
