"""From expert ids to row positions without a host synchronisation: a stable counting sort in three launches.

Shape legend: N = T*K pairs in (token, slot) order, E experts, B pairs of one program, G = ceil(N / B) programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

PAIRS = 512
"""Pairs of one program: each pair is compared with all earlier ones of its program, so the work grows with it."""

_CHUNK = 64
_SCAN_EXPERTS = 8
_SCAN_ROWS = 128


@triton.jit
def _rank_in_block(ids, rank_N, counts_GE, N, E, B: tl.constexpr, C: tl.constexpr, E_PAD: tl.constexpr):
    """rank[n]: earlier pairs of this block with the same expert; counts[g, e]: pairs of the block for each expert."""
    g = tl.program_id(0)
    at = tl.arange(0, B)
    n = g * B + at
    inside = n < N
    raw = tl.load(ids + n, mask=inside, other=-1).to(tl.int32)
    key = tl.where((raw >= 0) & (raw < E), raw, -1)
    expert = tl.arange(0, E_PAD)
    row = counts_GE + g.to(tl.int64) * E
    tl.store(row + expert, tl.zeros([E_PAD], tl.int32), mask=expert < E)
    rank = tl.zeros([B], tl.int32)
    after = tl.zeros([B], tl.int32)
    for c in range(0, B, C):
        other_at = c + tl.arange(0, C)
        m = g * B + other_at
        other = tl.load(ids + m, mask=m < N, other=-1).to(tl.int32)
        same = key[:, None] == other[None, :]
        rank += tl.sum((same & (other_at[None, :] < at[:, None])).to(tl.int32), 1)
        after += tl.sum((same & (other_at[None, :] > at[:, None])).to(tl.int32), 1)
    tl.store(rank_N + n, rank, mask=inside)
    tl.debug_barrier()  # the row is zero before the last pair of each expert writes its count
    tl.store(row + tl.where(key >= 0, key, 0), rank + 1, mask=inside & (key >= 0) & (after == 0))


@triton.jit
def _scan_blocks(counts_GE, counts_E, G, E, ROWS: tl.constexpr, COLS: tl.constexpr):
    """counts[g, e] becomes the pairs of e in blocks before g; counts_E the pairs of e in all."""
    e = tl.program_id(0) * COLS + tl.arange(0, COLS)
    before = tl.zeros([COLS], tl.int32)
    for start in range(0, G, ROWS):
        g = start + tl.arange(0, ROWS)
        at = counts_GE + g.to(tl.int64)[:, None] * E + e[None, :]
        mask = (g < G)[:, None] & (e < E)[None, :]
        counts = tl.load(at, mask=mask, other=0)
        upto = tl.cumsum(counts, 0)
        tl.store(at, before[None, :] + upto - counts, mask=mask)
        before += tl.sum(counts, 0)
    tl.store(counts_E + e, before, mask=e < E)


@triton.jit
def _positions(
    ids, rank_N, base_GE, counts_E, position_N, offsets_E1, N, E, MULTIPLE, B: tl.constexpr, E_PAD: tl.constexpr
):
    """position[n] = start of the expert + its pairs in earlier blocks + rank; -1 for a dropped pair."""
    g = tl.program_id(0)
    expert = tl.arange(0, E_PAD)
    counts = tl.load(counts_E + expert, mask=expert < E, other=0)
    rounded = (counts + MULTIPLE - 1) // MULTIPLE * MULTIPLE
    ends = tl.cumsum(rounded, 0)
    row = base_GE + g.to(tl.int64) * E
    base = tl.load(row + expert, mask=expert < E, other=0)
    tl.store(row + expert, base + ends - rounded, mask=expert < E)
    if g == 0:
        tl.store(offsets_E1, 0)
        tl.store(offsets_E1 + 1 + expert, ends.to(tl.int64), mask=expert < E)
    tl.debug_barrier()  # only this program uses its row, as a table to look experts up in
    n = g * B + tl.arange(0, B)
    inside = n < N
    raw = tl.load(ids + n, mask=inside, other=-1).to(tl.int32)
    valid = inside & (raw >= 0) & (raw < E)
    start = tl.load(row + tl.where(valid, raw, 0), mask=valid, other=0)
    rank = tl.load(rank_N + n, mask=valid, other=0)
    tl.store(position_N + n, tl.where(valid, start + rank, -1), mask=inside)


def routing_map(ids_N: torch.Tensor, num_experts: int, multiple: int = 1) -> tuple[torch.Tensor, ...]:
    """Stable order of pairs by expert; no host synchronisation, capturable in a CUDA graph.

    Args:
        ids_N: contiguous int32 or int64 expert of each pair; outside [0, E) is dropped.
        num_experts: E, at most 8192.
        multiple: every expert's rows start at a multiple of it.

    Returns:
        (position_N, counts_E, offsets_E1): int32 row of each pair or -1; int32 pairs of each expert; int64 first row of
        each expert and the end.
    """
    pairs, device = ids_N.numel(), ids_N.device
    blocks = triton.cdiv(pairs, PAIRS)
    e_pad = triton.next_power_of_2(num_experts)
    scratch = torch.empty((blocks, num_experts), dtype=torch.int32, device=device)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    offsets = torch.empty(num_experts + 1, dtype=torch.int64, device=device)
    rank = torch.empty(pairs, dtype=torch.int32, device=device)
    position = torch.empty(pairs, dtype=torch.int32, device=device)
    if not pairs:
        return position, counts.zero_(), offsets.zero_()
    launch: Any = _rank_in_block
    launch[(blocks,)](ids_N, rank, scratch, pairs, num_experts, B=PAIRS, C=_CHUNK, E_PAD=e_pad, num_warps=8)
    launch = _scan_blocks
    launch[(triton.cdiv(num_experts, _SCAN_EXPERTS),)](
        scratch, counts, blocks, num_experts, ROWS=_SCAN_ROWS, COLS=_SCAN_EXPERTS, num_warps=4
    )
    launch = _positions
    launch[(blocks,)](
        ids_N, rank, scratch, counts, position, offsets, pairs, num_experts, multiple, B=PAIRS, E_PAD=e_pad, num_warps=4
    )
    return position, counts, offsets
