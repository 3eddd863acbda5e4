"""Moving and summing rows: the only payload operations a dispatcher needs besides the wire.

On CUDA the Triton kernels of `dispatch/kernels` do both; elsewhere `index_select`, and `embedding_bag`, which also
accumulates in float32 and rounds once, in one pass over the rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from moe_dispatch.dispatch import kernels

_BLOCK_BYTES = 1 << 20


def gather_rows(source_NH: torch.Tensor, index_M: torch.Tensor, out_MH: torch.Tensor) -> torch.Tensor:
    """out[m] = source[index[m]], bitwise; returns `out_MH`."""
    if kernels.kernels_for(source_NH.device):
        from moe_dispatch.dispatch.kernels import move

        return move.gather_rows(source_NH, index_M, out_MH)
    if index_M.numel():
        torch.index_select(source_NH, 0, index_M, out=out_MH)
    return out_MH


def sum_rows(
    source_NH: torch.Tensor,
    index_M: torch.Tensor,
    offsets_B1: torch.Tensor,
    out_BH: torch.Tensor,
    *,
    whole: bool = False,
) -> torch.Tensor:
    """out[b] = sum of source[index[m]] for m in [offsets[b], offsets[b + 1]), in that order, float32 inside, rounded
    once.

    Args:
        source_NH: contiguous payload rows.
        index_M: int64 row numbers; entries before offsets[0] and from offsets[B] on are not used.
        offsets_B1: B + 1 ascending int64 positions in `index_M`; an empty bag gives a row of zeros.
        out_BH: where the sums go, same dtype.
        whole: the caller promises offsets[0] = 0 and offsets[B] = M, which spares a GPU the read-back.

    Returns:
        `out_BH`.

    On the CPU the work is cut into blocks that stay in the cache: `embedding_bag` allocates its result, and the page
    faults of one large fresh result cost more than the copy of small warm ones.
    """
    bags = out_BH.shape[0]
    if bags == 0:
        return out_BH
    if index_M.numel() == 0:
        return out_BH.zero_()
    if kernels.kernels_for(source_NH.device):
        from moe_dispatch.dispatch.kernels import move

        return move.sum_bags(source_NH, index_M, offsets_B1, out_BH)
    if whole and out_BH.device.type != "cpu":
        return out_BH.copy_(F.embedding_bag(index_M, source_NH, offsets_B1, mode="sum", include_last_offset=True))
    row_bytes = max(1, out_BH.shape[1] * out_BH.element_size())
    step = max(1, _BLOCK_BYTES // row_bytes) if out_BH.device.type == "cpu" else bags
    cuts = [*range(0, bags, step), bags]
    terms = offsets_B1[torch.tensor(cuts, device=offsets_B1.device)].tolist()
    for b0, b1, i0, i1 in zip(cuts, cuts[1:], terms, terms[1:], strict=False):
        if i0 == i1:
            out_BH[b0:b1].zero_()
            continue
        offsets = offsets_B1[b0 : b1 + 1] - i0
        out_BH[b0:b1] = F.embedding_bag(index_M[i0:i1], source_NH, offsets, mode="sum", include_last_offset=True)
    return out_BH


def offsets_from_counts(counts_B: torch.Tensor) -> torch.Tensor:
    """[0, c0, c0 + c1, ...] as int64, length B + 1."""
    offsets = counts_B.new_zeros(counts_B.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts_B, 0, out=offsets[1:])
    return offsets
