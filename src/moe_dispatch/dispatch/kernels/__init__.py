"""Triton kernels of the row movers, and whether they can be used here.

Everything here has a plain torch counterpart beside its caller; `kernels_for` decides.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch


def kernels_for(device: torch.device) -> bool:
    """Whether the kernels serve tensors of `device`: CUDA with Triton installed.

    Callers look this up in its module, so that tests can run the kernels through Triton's interpreter on a CPU.
    """
    return device.type == "cuda" and triton_installed()


@cache
def triton_installed() -> bool:
    """Whether Triton is there; a broken one shows in the gate, which compiles a permute."""
    return importlib.util.find_spec("triton") is not None
