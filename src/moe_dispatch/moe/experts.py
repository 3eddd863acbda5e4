"""Experts: two products around a gated activation, for rows grouped by local expert.

The routing weight multiplies the activation between the two products, in float32, before one rounding to the payload
dtype; that is where Megatron-Core applies it too
(NVIDIA/Megatron-LM@d98e8a64:megatron/core/transformer/moe/experts.py).
Shape legend: R rows, H row width, F inner width, e experts of this rank; P = 2F for SwiGLU (gate, then up), else F.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from moe_dispatch.core.errors import UsageError
from moe_dispatch.moe.activation import weighted_activation
from moe_dispatch.moe.weights import fill_weights
from moe_dispatch.workload.model import Activation


class _LoopedProduct(torch.autograd.Function):
    """rows of expert i times w[i], one matmul an expert, written straight into the result.

    With `accumulate`, backward adds the weight gradient into `w_eHP.grad` itself instead of returning a new tensor: on
    a CPU a fresh gradient of this size is mostly page faults.
    """

    @staticmethod
    def forward(
        ctx: Any, x_RH: torch.Tensor, w_eHP: torch.Tensor, counts: tuple[int, ...], accumulate: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(x_RH, w_eHP)
        ctx.counts = counts
        ctx.target = w_eHP if accumulate else None
        out_RP = x_RH.new_empty(x_RH.shape[0], w_eHP.shape[2])
        for rows, weight, out in zip(
            torch.split(x_RH, list(counts)), w_eHP.unbind(), torch.split(out_RP, list(counts)), strict=True
        ):
            if rows.shape[0]:
                torch.mm(rows, weight, out=out)
        return out_RP

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        x_RH, w_eHP = ctx.saved_tensors
        grad_RP, counts = grads[0].contiguous(), ctx.counts
        dx_RH = torch.empty_like(x_RH, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None
        sum_eHP = ctx.target.grad if ctx.target is not None and ctx.needs_input_grad[1] else None
        dw_eHP = torch.empty_like(w_eHP) if ctx.needs_input_grad[1] and sum_eHP is None else None
        start = 0
        for index, count in enumerate(counts):
            part = slice(start, start + count)
            if dx_RH is not None and count:
                torch.mm(grad_RP[part], w_eHP[index].t(), out=dx_RH[part])
            if sum_eHP is not None and count:
                sum_eHP[index].addmm_(x_RH[part].t(), grad_RP[part])
            elif dw_eHP is not None and count:
                torch.mm(x_RH[part].t(), grad_RP[part], out=dw_eHP[index])
            elif dw_eHP is not None:
                dw_eHP[index].zero_()
            start += count
        return dx_RH, dw_eHP, None, None


class GroupedExperts(nn.Module):
    """The experts that one rank owns.

    Args:
        expert_ids: global ids of the local experts, in row order; with `seed` they decide the initial weights, so every
            EP size and dispatcher sees the same experts.
        hidden: H, width of a row.
        ffn_hidden: F.
        activation: `swiglu` or `squared_relu`.

    Weights: `w1_eHP` [e, H, P] and `w2_eFH` [e, F, H]. Set `accumulate_in_place` to add their gradients to an existing
    `.grad` inside the product (not with `grouped_mm`); `torch.autograd.grad` and hooks then see none of them.
    """

    def __init__(
        self,
        expert_ids: range,
        hidden: int,
        ffn_hidden: int,
        *,
        activation: Activation = "swiglu",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.accumulate_in_place = False
        self.hidden = hidden
        self.activation = activation
        inner = 2 * ffn_hidden if activation == "swiglu" else ffn_hidden
        local = len(expert_ids)
        self.w1_eHP = nn.Parameter(torch.empty(local, hidden, inner, dtype=dtype, device=device))
        self.w2_eFH = nn.Parameter(torch.empty(local, ffn_hidden, hidden, dtype=dtype, device=device))
        fill_weights(self.w1_eHP, expert_ids, seed=seed, salt=1, scale=hidden**-0.5)
        fill_weights(self.w2_eFH, expert_ids, seed=seed, salt=2, scale=ffn_hidden**-0.5)

    def forward(self, x_RH: torch.Tensor, probs_R: torch.Tensor, tokens_per_expert_e: torch.Tensor) -> torch.Tensor:
        """Apply the experts.

        Args:
            x_RH: rows in the dtype of the weights, grouped by local expert; rows beyond the counts are padding.
            probs_R: float32 [R].
            tokens_per_expert_e: integer [e] on the CPU.

        Returns:
            y_RH in the dtype of x; padding rows are zero and carry no gradient.

        Raises:
            UsageError: counts of the wrong length, or more rows counted than given.
        """
        counts = tuple(int(count) for count in tokens_per_expert_e.tolist())
        total, given = sum(counts), x_RH.shape[0]
        if len(counts) != self.w1_eHP.shape[0] or total > given:
            raise UsageError(
                f"experts: counts of {len(counts)} experts sum to {total}; there are {self.w1_eHP.shape[0]} experts "
                f"and {given} rows"
            )
        inner_RP = self._product(x_RH[:total], self.w1_eHP, counts)
        active_RF = weighted_activation(inner_RP, probs_R[:total], self.activation)
        y_RH = self._product(active_RF, self.w2_eFH, counts)
        return y_RH if total == given else nn.functional.pad(y_RH, (0, 0, 0, given - total))

    def _product(self, rows: torch.Tensor, weights: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
        if rows.shape[0] and rows.is_cuda and _grouped_mm_works(rows.dtype, rows.device, *weights.shape[1:]):
            ends = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
            out_RP = nn.functional.grouped_mm(rows, weights, offs=ends.to(rows.device, non_blocking=True))
            if out_RP.requires_grad:  # its backward refuses expanded gradients, as those of a plain sum are
                out_RP.register_hook(torch.Tensor.contiguous)
            return out_RP
        product: torch.Tensor = _LoopedProduct.apply(  # type: ignore[no-untyped-call]
            rows, weights, counts, self.accumulate_in_place
        )
        return product


@cache
def _grouped_mm_works(dtype: torch.dtype, device: torch.device, inner: int, outer: int) -> bool:
    """Whether `torch.nn.functional.grouped_mm` runs forward and backward here, found out by one small call."""
    if not hasattr(nn.functional, "grouped_mm"):
        return False
    try:
        with torch.enable_grad():
            rows = torch.zeros(16, inner, dtype=dtype, device=device, requires_grad=True)
            weights = torch.zeros(2, inner, outer, dtype=dtype, device=device, requires_grad=True)
            ends = torch.tensor([0, 16], dtype=torch.int32, device=device)
            out = nn.functional.grouped_mm(rows, weights, offs=ends)
            torch.autograd.grad(out, (rows, weights), torch.ones_like(out))
            torch.cuda.synchronize(device)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True
