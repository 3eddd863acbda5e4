"""Rotary position embedding in the half-split form (RoFormer, arXiv:2104.09864; halves as in GPT-NeoX).

Shape legend: B sequences, S positions, N heads, D rotated width (even).
"""

from __future__ import annotations

import torch

BASE = 10_000.0


class Rotary:
    """Tables of cos and sin for `positions` positions, float32 [S, D/2]; no parameters."""

    def __init__(self, width: int, positions: int, device: torch.device | str) -> None:
        exponent = torch.arange(0, width, 2, dtype=torch.float32) / width
        angle_SD = torch.outer(torch.arange(positions, dtype=torch.float32), BASE**-exponent)
        self.cos_SD = angle_SD.cos().to(device)
        self.sin_SD = angle_SD.sin().to(device)

    def __call__(self, x_BSND: torch.Tensor) -> torch.Tensor:
        """Rotate; computed in float32, returned in the dtype of x. S may be shorter than the tables."""
        length = x_BSND.shape[1]
        cos, sin = self.cos_SD[:length].unsqueeze(1), self.sin_SD[:length].unsqueeze(1)
        first, second = x_BSND.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_BSND.dtype)
