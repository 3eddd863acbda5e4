"""RMSNorm with its statistics in float32, whatever the dtype of the activations."""

from __future__ import annotations

import torch
from torch import nn

EPSILON = 1e-6
"""Added to the mean square; Qwen3 and DeepSeek-V3 configurations (`rms_norm_eps`) use this value."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis. Weight [width], initially one."""

    def __init__(self, width: int, *, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape and dtype as x; differentiable."""
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, EPSILON)
