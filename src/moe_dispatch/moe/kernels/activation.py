"""The weighted SwiGLU in one pass over the rows each way; everything between load and store is float32.

Shape legend: R rows, F inner width, P = 2F (gate columns, then up columns), b columns of one step.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_COLUMNS = 1024


@triton.jit
def _forward(inner_RP, probs_R, out_RF, F, b: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * b + tl.arange(0, b)
    mask = column < F
    gate = tl.load(inner_RP + r * 2 * F + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(inner_RP + r * 2 * F + F + column, mask=mask, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up * tl.load(probs_R + r)
    tl.store(out_RF + r * F + column, value.to(out_RF.dtype.element_ty), mask=mask)


@triton.jit
def _backward(grad_RF, inner_RP, probs_R, d_inner_RP, d_probs_R, F, b: tl.constexpr):
    """One row a program, so that the gradient of its weight is one ordered sum."""
    r = tl.program_id(0).to(tl.int64)
    prob = tl.load(probs_R + r)
    total = tl.zeros([b], tl.float32)
    for first in range(0, F, b):
        column = first + tl.arange(0, b)
        mask = column < F
        gate = tl.load(inner_RP + r * 2 * F + column, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(inner_RP + r * 2 * F + F + column, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_RF + r * F + column, mask=mask, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        total += grad * silu * up
        weighted = grad * prob
        d_gate = weighted * up * (sigmoid + silu - silu * sigmoid)
        tl.store(d_inner_RP + r * 2 * F + column, d_gate.to(d_inner_RP.dtype.element_ty), mask=mask)
        tl.store(d_inner_RP + r * 2 * F + F + column, (weighted * silu).to(d_inner_RP.dtype.element_ty), mask=mask)
    tl.store(d_probs_R + r, tl.sum(total, 0))


def swiglu_forward(inner_RP: torch.Tensor, probs_R: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up * prob as [R, F]; contiguous inputs, float32 `probs_R`."""
    rows, width = inner_RP.shape[0], inner_RP.shape[1] // 2
    out_RF = inner_RP.new_empty((rows, width))
    if rows and width:
        columns = min(_COLUMNS, triton.next_power_of_2(width))
        launch: Any = _forward
        launch[(rows, triton.cdiv(width, columns))](inner_RP, probs_R, out_RF, width, b=columns, num_warps=4)
    return out_RF


def swiglu_backward(
    grad_RF: torch.Tensor, inner_RP: torch.Tensor, probs_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `inner_RP` and, float32, of `probs_R`; contiguous inputs."""
    rows, width = grad_RF.shape
    d_inner_RP, d_probs_R = torch.empty_like(inner_RP), torch.zeros_like(probs_R)
    if rows and width:
        columns = min(_COLUMNS, triton.next_power_of_2(width))
        launch: Any = _backward
        launch[(rows,)](grad_RF, inner_RP, probs_R, d_inner_RP, d_probs_R, width, b=columns, num_warps=4)
    return d_inner_RP, d_probs_R
