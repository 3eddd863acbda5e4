"""Permute to expert order and back, on one device, differentiable: what fused dispatchers do around the wire.

`routing_map` turns expert ids into row positions without a host synchronisation; `permute` writes every token's row to
its experts' places; `unpermute` sums each token's rows, weighted or plain, in slot order with float32 inside.
Shape legend: T tokens, K slots, E experts, H row width, R rows, B scales of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch import kernels
from moe_dispatch.dispatch.order import inverse_order, stable_order
from moe_dispatch.dispatch.rows import offsets_from_counts

FP8_BLOCK = 128
_FP8_MAX = 448.0
_MAX_EXPERTS = 8192
_MAX_TOPK = 32


@dataclass(frozen=True, kw_only=True)
class RoutingMap:
    """Where the row of each (token, slot) pair lies when rows are grouped by expert, tokens ascending inside.

    Fields:
        position_TK: int32 row, -1 for a dropped slot.
        counts_E: int32 pairs of each expert.
        offsets_E1: int64 first row of each expert, then the end; with alignment, counts leave zeroed rows between.
        rows: rows to allocate, an upper bound that needs no look at the counts.
    """

    position_TK: torch.Tensor
    counts_E: torch.Tensor
    offsets_E1: torch.Tensor
    rows: int


def routing_map(ids_TK: torch.Tensor, num_experts: int, *, multiple: int = 1) -> RoutingMap:
    """Stable order by expert, on the device of `ids_TK`; on CUDA without a host synchronisation.

    Args:
        ids_TK: integers; outside [0, E) a slot is dropped.
        num_experts: E, at most 8192.
        multiple: rows of every expert start at a multiple of it (grouped products in fp8 need 16 or 32).

    Raises:
        UsageError: sizes out of range.
    """
    if ids_TK.dim() != 2 or not 1 <= ids_TK.shape[1] <= _MAX_TOPK or ids_TK.is_floating_point():
        raise UsageError(
            f"expert ids have shape {tuple(ids_TK.shape)} and {ids_TK.dtype}; expected (T, K) integers with K in 1 to "
            f"{_MAX_TOPK}"
        )
    if not 1 <= num_experts <= _MAX_EXPERTS or multiple < 1:
        raise UsageError(f"num_experts={num_experts} must be in 1 to {_MAX_EXPERTS} and multiple={multiple} at least 1")
    ids = ids_TK if ids_TK.dtype == torch.int32 else ids_TK.to(torch.int64)
    flat = ids.reshape(-1).contiguous()
    rows = flat.numel() + min(num_experts, flat.numel()) * (multiple - 1)
    if rows > torch.iinfo(torch.int32).max:
        raise UsageError(f"{rows} rows exceed what 32-bit positions can name", "split the batch")
    if kernels.kernels_for(ids.device):
        from moe_dispatch.dispatch.kernels.routing_map import routing_map as launch

        position, counts, offsets = launch(flat, num_experts, multiple)
    else:
        position, counts, offsets = _routing_map_torch(flat, num_experts, multiple)
    return RoutingMap(position_TK=position.view(ids_TK.shape), counts_E=counts, offsets_E1=offsets, rows=rows)


def permute(
    x_TH: torch.Tensor, where: RoutingMap, probs_TK: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows in expert order; differentiable in x_TH and probs_TK.

    Returns:
        (x_RH, probs_R): R = `where.rows`; alignment rows and rows past the last pair are zero.
    """
    rows: torch.Tensor = _Permute.apply(x_TH, where)  # type: ignore[no-untyped-call]
    if probs_TK is None:
        return rows, None
    probs: torch.Tensor = _PermuteValues.apply(probs_TK, where)  # type: ignore[no-untyped-call]
    return rows, probs


def permute_fp8(x_TH: torch.Tensor, where: RoutingMap) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in expert order as float8_e4m3fn, with a float32 scale for each 128 columns; not differentiable.

    Returns:
        (q_RH, scale_RB): x is about q * scale; B = ceil(H / 128). Rows that no pair fills have scale 1 and are zero.
    """
    tokens, hidden = x_TH.shape
    blocks = -(-hidden // FP8_BLOCK)
    q_RH = torch.zeros((where.rows, hidden), dtype=torch.uint8, device=x_TH.device).view(torch.float8_e4m3fn)
    scale_RB = torch.ones((where.rows, blocks), dtype=torch.float32, device=x_TH.device)
    if x_TH.device.type == "cuda" and kernels.kernels_for(x_TH.device):
        from moe_dispatch.dispatch.kernels.move import scatter_rows_fp8

        scatter_rows_fp8(x_TH, where.position_TK, q_RH, scale_RB)
        return q_RH, scale_RB
    padded = torch.nn.functional.pad(x_TH.float(), (0, blocks * FP8_BLOCK - hidden)).view(tokens, blocks, FP8_BLOCK)
    largest = padded.abs().amax(-1)
    scale_TB = torch.where(largest > 0, largest / _FP8_MAX, torch.ones_like(largest))
    q_TH = (padded / scale_TB.unsqueeze(-1)).to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)[:, :hidden]
    _scatter_torch(q_TH, where.position_TK, q_RH.view(torch.uint8))
    _scatter_torch(scale_TB, where.position_TK, scale_RB)
    return q_RH, scale_RB


def unpermute(y_RH: torch.Tensor, where: RoutingMap, weight_TK: torch.Tensor | None = None) -> torch.Tensor:
    """out_TH: sum of each token's rows, times float32 `weight_TK` where given; differentiable in both."""
    if y_RH.shape[0] != where.rows:
        raise UsageError(f"unpermute got {y_RH.shape[0]} rows, but this routing map has {where.rows}")
    out: torch.Tensor = _Unpermute.apply(y_RH, weight_TK, where)  # type: ignore[no-untyped-call]
    return out


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TH: torch.Tensor, where: RoutingMap) -> torch.Tensor:
        ctx.where = where
        return _scatter(x_TH, where)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RH: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(grad_RH.contiguous(), ctx.where, None), None


class _Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_RH: torch.Tensor, weight_TK: torch.Tensor | None, where: RoutingMap) -> torch.Tensor:
        ctx.where, ctx.weighted = where, weight_TK is not None
        ctx.save_for_backward(*((y_RH, weight_TK) if weight_TK is not None else ()))
        return _sum(y_RH.contiguous(), where, weight_TK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TH: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if not ctx.weighted:
            return _scatter(grad_TH, ctx.where), None, None
        y_RH, weight_TK = ctx.saved_tensors
        grad_RH, grad_TK = _scatter_weighted(grad_TH, y_RH.contiguous(), weight_TK, ctx.where)
        return grad_RH, grad_TK, None


class _PermuteValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value_TK: torch.Tensor, where: RoutingMap) -> torch.Tensor:
        ctx.where = where
        return scatter_values(value_TK, where, value_TK.new_zeros(where.rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_R: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gather_values(grad_R, ctx.where), None


def scatter_values(value_TK: torch.Tensor, where: RoutingMap, out_R: torch.Tensor) -> torch.Tensor:
    """out[position[t, k]] = value[t, k]; not differentiable. Returns `out_R`."""
    value_N, position_N = value_TK.reshape(-1).contiguous(), where.position_TK.reshape(-1)
    if kernels.kernels_for(value_N.device):
        from moe_dispatch.dispatch.kernels import move

        return move.scatter_values(value_N, position_N, out_R)
    there = position_N >= 0
    out_R[position_N[there].long()] = value_N[there]
    return out_R


def gather_values(value_R: torch.Tensor, where: RoutingMap) -> torch.Tensor:
    """value[position[t, k]] as [T, K], zero for dropped slots; not differentiable."""
    value_R, position_N = value_R.contiguous(), where.position_TK.reshape(-1)
    out_TK = value_R.new_zeros(where.position_TK.shape)
    if kernels.kernels_for(value_R.device):
        from moe_dispatch.dispatch.kernels import move

        move.gather_values(value_R, position_N, out_TK.view(-1))
        return out_TK
    there = position_N >= 0
    out_TK.view(-1)[there] = value_R[position_N[there].long()]
    return out_TK


def _scatter(x_TH: torch.Tensor, where: RoutingMap) -> torch.Tensor:
    out_RH = _rows_with_zeroed_gaps(x_TH, where)
    if kernels.kernels_for(x_TH.device):
        from moe_dispatch.dispatch.kernels.move import scatter_rows

        return scatter_rows(x_TH, where.position_TK, out_RH)
    return _scatter_torch(x_TH, where.position_TK, out_RH)


def _rows_with_zeroed_gaps(like_TH: torch.Tensor, where: RoutingMap) -> torch.Tensor:
    """[R, H] whose rows that no pair fills are zero: alignment rows, and as many as slots were dropped."""
    shape = (where.rows, like_TH.shape[1])
    if not kernels.kernels_for(like_TH.device):
        return like_TH.new_zeros(shape)
    from moe_dispatch.dispatch.kernels.move import zero_gaps

    out_RH = like_TH.new_empty(shape)
    zero_gaps(out_RH, where.counts_E, where.offsets_E1)
    return out_RH


def _sum(y_RH: torch.Tensor, where: RoutingMap, weight_TK: torch.Tensor | None) -> torch.Tensor:
    tokens, topk = where.position_TK.shape
    out_TH = y_RH.new_empty((tokens, y_RH.shape[1]))
    if kernels.kernels_for(y_RH.device):
        from moe_dispatch.dispatch.kernels.move import sum_slots

        return sum_slots(y_RH, where.position_TK, out_TH, weight_TK)
    total = torch.zeros(out_TH.shape, dtype=torch.float32, device=y_RH.device)
    for k in range(topk):
        term = _picked(y_RH, where.position_TK[:, k]).float()
        total += term if weight_TK is None else term * weight_TK[:, k, None]
    return out_TH.copy_(total)


def _scatter_weighted(
    grad_TH: torch.Tensor, y_RH: torch.Tensor, weight_TK: torch.Tensor, where: RoutingMap
) -> tuple[torch.Tensor, torch.Tensor]:
    out_RH = _rows_with_zeroed_gaps(y_RH, where)
    if kernels.kernels_for(y_RH.device):
        from moe_dispatch.dispatch.kernels.move import scatter_weighted

        return out_RH, scatter_weighted(grad_TH, y_RH, weight_TK, where.position_TK, out_RH)
    grad_TK = torch.zeros_like(weight_TK)
    for k in range(weight_TK.shape[1]):
        position = where.position_TK[:, k]
        there = position >= 0
        out_RH[position[there].long()] = (grad_TH.float() * weight_TK[:, k, None]).to(out_RH.dtype)[there]
        grad_TK[:, k] = (grad_TH.float() * _picked(y_RH, position).float()).sum(1)
    return out_RH, grad_TK


def _scatter_torch(x_TH: torch.Tensor, position_TK: torch.Tensor, out_RH: torch.Tensor) -> torch.Tensor:
    for k in range(position_TK.shape[1]):
        there = position_TK[:, k] >= 0
        out_RH[position_TK[there, k].long()] = x_TH[there]
    return out_RH


def _picked(y_RH: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
    """y[position], zero where it is -1."""
    if not y_RH.shape[0]:
        return y_RH.new_zeros((position_T.shape[0], y_RH.shape[1]))
    rows = y_RH[position_T.clamp_min(0).long()]
    return rows.masked_fill_((position_T < 0).unsqueeze(1), 0)


def _routing_map_torch(
    flat_N: torch.Tensor, num_experts: int, multiple: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    valid = (flat_N >= 0) & (flat_N < num_experts)
    key = torch.where(valid, flat_N, num_experts)
    counts = torch.bincount(key, minlength=num_experts + 1)[:num_experts]
    offsets = offsets_from_counts((counts + multiple - 1) // multiple * multiple)
    rank = inverse_order(stable_order(key, num_experts))  # among all pairs, dropped ones last
    start = torch.cat([offsets[:-1] - offsets_from_counts(counts)[:-1], offsets.new_zeros(1)])
    position = torch.where(valid, rank + start[key.long()], -1)
    return position.to(torch.int32), counts.to(torch.int32), offsets
