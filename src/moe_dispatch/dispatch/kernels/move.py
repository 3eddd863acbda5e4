"""Kernels that move rows: scatter to expert order, gather, sum back, and the weighted backward.

Each reads a row once and writes each result row once. Sums run in slot order, in float32, and are rounded once, so a
result does not depend on timing. Row numbers are widened to 64 bits before they are multiplied by the row width.
Shape legend: T tokens, K slots, H row width, R rows, b columns of one program.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_COLUMNS = 2048
_VALUES = 512
FP8_BLOCK = 128
"""Columns that share one scale (1 x 128 tiles)."""
_FP8_MAX = 448.0


@triton.jit
def _scatter(x_TH, position_TK, out_RH, stride, H, K: tl.constexpr, b: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * b + tl.arange(0, b)
    mask = column < H
    value = tl.load(x_TH + t * stride + column, mask=mask)
    for k in tl.static_range(K):
        r = tl.load(position_TK + t * K + k).to(tl.int64)
        tl.store(out_RH + r * H + column, value, mask=column < tl.where(r >= 0, H, 0))


@triton.jit
def _scatter_weighted(
    g_TH,
    y_RH,
    weight_TK,
    position_TK,
    out_RH,
    dot_TK,
    stride,
    H,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    b: tl.constexpr,
):
    """out[r] = weight * g[t] and dot[t, k] = <g[t], y[r]>: backward of the weighted sum, one token a program."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, K_PAD)
    dots = tl.zeros([K_PAD], tl.float32)
    for first in range(0, H, b):
        column = first + tl.arange(0, b)
        mask = column < H
        g = tl.load(g_TH + t * stride + column, mask=mask, other=0.0).to(tl.float32)
        for k in tl.static_range(K):
            r = tl.load(position_TK + t * K + k).to(tl.int64)
            weight = tl.load(weight_TK + t * K + k)
            there = column < tl.where(r >= 0, H, 0)
            y = tl.load(y_RH + r * H + column, mask=there, other=0.0).to(tl.float32)
            tl.store(out_RH + r * H + column, (g * weight).to(out_RH.dtype.element_ty), mask=there)
            dots += tl.where(slot == k, tl.sum(g * y, 0), 0.0)
    tl.store(dot_TK + t * K + slot, dots, mask=slot < K)


@triton.jit
def _scatter_fp8(
    x_TH, position_TK, out_RH, scale_RB, stride, H, LIMIT, K: tl.constexpr, TILES: tl.constexpr, WIDTH: tl.constexpr
):
    """Rows as e4m3 with one float32 scale for each 128 columns: value = stored * scale."""
    t = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1) * TILES + tl.arange(0, TILES)
    column = tile[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    mask = column < H
    value = tl.load(x_TH + t * stride + column, mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(value), 1)
    scale = tl.where(largest > 0, largest / LIMIT, 1.0)
    stored = (value / scale[:, None]).to(out_RH.dtype.element_ty)
    tiles = tl.cdiv(H, WIDTH)
    for k in tl.static_range(K):
        r = tl.load(position_TK + t * K + k).to(tl.int64)
        tl.store(out_RH + r * H + column, stored, mask=column < tl.where(r >= 0, H, 0))
        tl.store(scale_RB + r * tiles + tile, scale, mask=tile < tl.where(r >= 0, tiles, 0))


@triton.jit
def _sum_slots(y_RH, weight_TK, position_TK, out_TH, H, K: tl.constexpr, b: tl.constexpr, WEIGHTED: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * b + tl.arange(0, b)
    mask = column < H
    total = tl.zeros([b], tl.float32)
    for k in tl.static_range(K):
        r = tl.load(position_TK + t * K + k).to(tl.int64)
        there = column < tl.where(r >= 0, H, 0)
        term = tl.load(y_RH + r * H + column, mask=there, other=0.0).to(tl.float32)
        if WEIGHTED:
            term = term * tl.load(weight_TK + t * K + k)
        total += term
    tl.store(out_TH + t * H + column, total.to(out_TH.dtype.element_ty), mask=mask)


@triton.jit
def _gather(source_NH, index_M, out_MH, stride, H, b: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * b + tl.arange(0, b)
    mask = column < H
    n = tl.load(index_M + m).to(tl.int64)
    tl.store(out_MH + m * H + column, tl.load(source_NH + n * stride + column, mask=mask), mask=mask)


@triton.jit
def _sum_bags(source_NH, index_M, offsets_B1, out_BH, H, b: tl.constexpr):
    bag = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * b + tl.arange(0, b)
    mask = column < H
    first = tl.load(offsets_B1 + bag)
    last = tl.load(offsets_B1 + bag + 1)
    total = tl.zeros([b], tl.float32)
    for m in range(first, last):
        n = tl.load(index_M + m).to(tl.int64)
        total += tl.load(source_NH + n * H + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_BH + bag * H + column, total.to(out_BH.dtype.element_ty), mask=mask)


@triton.jit
def _scatter_values(value_N, position_N, out_R, N, b: tl.constexpr):
    n = tl.program_id(0) * b + tl.arange(0, b)
    r = tl.load(position_N + n, mask=n < N, other=-1)
    tl.store(out_R + r, tl.load(value_N + n, mask=n < N), mask=r >= 0)


@triton.jit
def _gather_values(value_R, position_N, out_N, N, b: tl.constexpr):
    n = tl.program_id(0) * b + tl.arange(0, b)
    r = tl.load(position_N + n, mask=n < N, other=-1)
    tl.store(out_N + n, tl.load(value_R + r, mask=r >= 0, other=0.0), mask=n < N)


@triton.jit
def _zero_gaps(out_RH, counts_E, offsets_E1, R, E, H, b: tl.constexpr):
    """Zero the rows after the last pair of an expert; program E does so for the rows after the last expert."""
    e = tl.program_id(0)
    column = tl.program_id(1) * b + tl.arange(0, b)
    first = tl.load(offsets_E1 + e)
    last = tl.full([], R, tl.int64)
    if e < E:
        first += tl.load(counts_E + e)
        last = tl.load(offsets_E1 + e + 1)
    nothing = tl.zeros([b], out_RH.dtype.element_ty)
    for r in range(first, last):
        tl.store(out_RH + r * H + column, nothing, mask=column < H)


def scatter_rows(x_TH: torch.Tensor, position_TK: torch.Tensor, out_RH: torch.Tensor) -> torch.Tensor:
    """out[position[t, k]] = x[t], bitwise; rows that no pair names are left alone. Returns `out_RH`."""
    tokens, topk = position_TK.shape
    hidden = out_RH.shape[1]
    if tokens and hidden:
        x_TH = _rows(x_TH)
        columns, grid = _tiles(tokens, hidden)
        launch: Any = _scatter
        launch[grid](x_TH, position_TK, out_RH, x_TH.stride(0), hidden, K=topk, b=columns, num_warps=_warps(columns))
    return out_RH


def scatter_rows_fp8(
    x_TH: torch.Tensor, position_TK: torch.Tensor, out_RH: torch.Tensor, scale_RB: torch.Tensor
) -> None:
    """Like `scatter_rows`, stored as float8_e4m3fn with float32 `scale_RB` for each 128 columns."""
    tokens, topk = position_TK.shape
    hidden = out_RH.shape[1]
    if tokens and hidden:
        x_TH = _rows(x_TH)
        tiles = min(_COLUMNS // FP8_BLOCK, triton.next_power_of_2(triton.cdiv(hidden, FP8_BLOCK)))
        launch: Any = _scatter_fp8
        launch[(tokens, triton.cdiv(hidden, tiles * FP8_BLOCK))](
            x_TH, position_TK, out_RH, scale_RB, x_TH.stride(0), hidden, _FP8_MAX, K=topk, TILES=tiles, WIDTH=FP8_BLOCK
        )


def sum_slots(
    y_RH: torch.Tensor, position_TK: torch.Tensor, out_TH: torch.Tensor, weight_TK: torch.Tensor | None = None
) -> torch.Tensor:
    """out[t] = sum over k of (weight[t, k] *) y[position[t, k]]; position -1 adds nothing. Returns `out_TH`."""
    tokens, topk = position_TK.shape
    hidden = out_TH.shape[1]
    if tokens and hidden:
        columns, grid = _tiles(tokens, hidden)
        weight = out_TH if weight_TK is None else weight_TK.contiguous()
        launch: Any = _sum_slots
        launch[grid](
            y_RH,
            weight,
            position_TK,
            out_TH,
            hidden,
            K=topk,
            b=columns,
            WEIGHTED=weight_TK is not None,
            num_warps=_warps(columns),
        )
    return out_TH


def scatter_weighted(
    g_TH: torch.Tensor, y_RH: torch.Tensor, weight_TK: torch.Tensor, position_TK: torch.Tensor, out_RH: torch.Tensor
) -> torch.Tensor:
    """Backward of the weighted `sum_slots`: fills `out_RH` and returns the float32 gradient of `weight_TK`."""
    tokens, topk = position_TK.shape
    hidden = out_RH.shape[1]
    dot_TK = torch.zeros((tokens, topk), dtype=torch.float32, device=out_RH.device)
    if tokens and hidden:
        g_TH = _rows(g_TH)
        columns = min(_COLUMNS, triton.next_power_of_2(hidden))
        launch: Any = _scatter_weighted
        launch[(tokens,)](
            g_TH,
            y_RH,
            weight_TK.contiguous(),
            position_TK,
            out_RH,
            dot_TK,
            g_TH.stride(0),
            hidden,
            K=topk,
            K_PAD=triton.next_power_of_2(topk),
            b=columns,
            num_warps=_warps(columns),
        )
    return dot_TK


def gather_rows(source_NH: torch.Tensor, index_M: torch.Tensor, out_MH: torch.Tensor) -> torch.Tensor:
    """out[m] = source[index[m]], bitwise. Returns `out_MH`."""
    rows, hidden = out_MH.shape
    if rows and hidden:
        source_NH = _rows(source_NH)
        columns, grid = _tiles(rows, hidden)
        launch: Any = _gather
        launch[grid](source_NH, index_M, out_MH, source_NH.stride(0), hidden, b=columns, num_warps=_warps(columns))
    return out_MH


def sum_bags(
    source_NH: torch.Tensor, index_M: torch.Tensor, offsets_B1: torch.Tensor, out_BH: torch.Tensor
) -> torch.Tensor:
    """out[b] = sum of source[index[m]] for m in [offsets[b], offsets[b + 1]), in that order. Returns `out_BH`."""
    bags, hidden = out_BH.shape
    if bags and hidden:
        columns, grid = _tiles(bags, hidden)
        launch: Any = _sum_bags
        launch[grid](source_NH.contiguous(), index_M, offsets_B1, out_BH, hidden, b=columns, num_warps=_warps(columns))
    return out_BH


def scatter_values(value_N: torch.Tensor, position_N: torch.Tensor, out_R: torch.Tensor) -> torch.Tensor:
    """out[position[n]] = value[n], single values; position -1 is dropped. Returns `out_R`."""
    if value_N.numel():
        launch: Any = _scatter_values
        launch[(triton.cdiv(value_N.numel(), _VALUES),)](value_N, position_N, out_R, value_N.numel(), b=_VALUES)
    return out_R


def gather_values(value_R: torch.Tensor, position_N: torch.Tensor, out_N: torch.Tensor) -> torch.Tensor:
    """out[n] = value[position[n]], zero where it is -1. Returns `out_N`."""
    if out_N.numel():
        launch: Any = _gather_values
        launch[(triton.cdiv(out_N.numel(), _VALUES),)](value_R, position_N, out_N, out_N.numel(), b=_VALUES)
    return out_N


def zero_gaps(out_RH: torch.Tensor, counts_E: torch.Tensor, offsets_E1: torch.Tensor) -> None:
    """Zero the rows of `out_RH` that no pair fills: alignment rows of every expert, and those after the last."""
    experts, (rows, hidden) = counts_E.numel(), out_RH.shape
    if rows and hidden:
        columns, grid = _tiles(experts + 1, hidden)
        launch: Any = _zero_gaps
        launch[grid](out_RH, counts_E, offsets_E1, rows, experts, hidden, b=columns)


def _rows(tensor_NH: torch.Tensor) -> torch.Tensor:
    """With unit stride inside a row; an expanded gradient is made real."""
    return tensor_NH if tensor_NH.stride(-1) == 1 or tensor_NH.shape[-1] == 1 else tensor_NH.contiguous()


def _tiles(rows: int, hidden: int) -> tuple[int, tuple[int, int]]:
    columns = min(_COLUMNS, triton.next_power_of_2(hidden))
    return columns, (rows, triton.cdiv(hidden, columns))


def _warps(columns: int) -> int:
    """Eight elements a thread: one 16-byte access of a 16-bit type."""
    return max(1, min(8, columns // 256))
