"""Expert activations with the routing weight applied inside: computed in float32, rounded once to the row dtype.

The backward pass recomputes from the saved inputs instead of keeping float32 intermediates, which are several times the
size of the rows. On CUDA one Triton kernel does each direction of SwiGLU.
Shape legend: R rows, F inner width, P = 2F for SwiGLU (gate columns, then up columns), else F.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from moe_dispatch.dispatch import kernels
from moe_dispatch.workload.model import Activation


class _WeightedSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inner_RP: torch.Tensor, probs_R: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inner_RP, probs_R)
        if kernels.kernels_for(inner_RP.device):
            from moe_dispatch.moe.kernels.activation import swiglu_forward

            return swiglu_forward(inner_RP.contiguous(), probs_R.contiguous())
        gate_RF, up_RF = inner_RP.chunk(2, dim=1)
        value_RF = nn.functional.silu(gate_RF.float()).mul_(up_RF).mul_(probs_R.unsqueeze(1))
        return value_RF.to(inner_RP.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner_RP, probs_R = ctx.saved_tensors
        if kernels.kernels_for(inner_RP.device):
            from moe_dispatch.moe.kernels.activation import swiglu_backward

            return swiglu_backward(grads[0].contiguous(), inner_RP.contiguous(), probs_R.contiguous())
        gate_RF, up_RF = inner_RP.chunk(2, dim=1)
        gate_RF, up_RF, grad_RF = gate_RF.float(), up_RF.float(), grads[0].float()
        sigmoid_RF = torch.sigmoid(gate_RF)
        silu_RF = gate_RF * sigmoid_RF
        dprobs_R = (grad_RF * silu_RF).mul_(up_RF).sum(dim=1)
        grad_RF = grad_RF * probs_R.unsqueeze(1)
        d_inner_RP = torch.empty_like(inner_RP)
        d_gate_RF, d_up_RF = d_inner_RP.chunk(2, dim=1)
        d_up_RF.copy_(grad_RF * silu_RF)
        slope_RF = sigmoid_RF.add_(silu_RF - silu_RF * sigmoid_RF)
        d_gate_RF.copy_(grad_RF.mul_(up_RF).mul_(slope_RF))
        return d_inner_RP, dprobs_R


class _WeightedSquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inner_RF: torch.Tensor, probs_R: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inner_RF, probs_R)
        return inner_RF.float().clamp(min=0).square_().mul_(probs_R.unsqueeze(1)).to(inner_RF.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner_RF, probs_R = ctx.saved_tensors
        positive_RF, grad_RF = inner_RF.float().clamp(min=0), grads[0].float()
        dprobs_R = (grad_RF * positive_RF * positive_RF).sum(dim=1)
        return (2 * positive_RF * grad_RF * probs_R.unsqueeze(1)).to(inner_RF.dtype), dprobs_R


def weighted_activation(inner_RP: torch.Tensor, probs_R: torch.Tensor, kind: Activation) -> torch.Tensor:
    """silu(gate) * up * prob, or relu(x)^2 * prob.

    Args:
        inner_RP: floating rows.
        probs_R: float32 [R].

    Returns:
        [R, F] in the dtype of inner_RP.
    """
    function = _WeightedSwiglu if kind == "swiglu" else _WeightedSquaredRelu
    result: torch.Tensor = function.apply(inner_RP, probs_R)  # type: ignore[no-untyped-call]
    return result
