"""Rows of (token, expert) pairs in expert order, not differentiable: `alltoall`'s permutation on either kind of device.

Shape legend: T tokens, K slots, E experts, H row width, S pairs that are sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from moe_dispatch.dispatch import kernels
from moe_dispatch.dispatch.order import inverse_order, stable_order
from moe_dispatch.dispatch.permute import RoutingMap, gather_values, routing_map, scatter_values
from moe_dispatch.dispatch.rows import gather_rows, offsets_from_counts, sum_rows


class PairRows(ABC):
    """The S pairs of one call, ordered by expert, tokens ascending inside; `counts_E` on the device of the ids."""

    counts_E: torch.Tensor

    @abstractmethod
    def scatter(self, x_TH: torch.Tensor, out_SH: torch.Tensor) -> None:
        """Every token's row to each of its pairs."""

    @abstractmethod
    def sum(self, rows_SH: torch.Tensor, out_TH: torch.Tensor) -> None:
        """Each token's rows added in slot order, float32 inside."""

    @abstractmethod
    def scatter_values(self, value_TK: torch.Tensor, pairs: int) -> torch.Tensor:
        """[S] values of the S = `pairs` pairs."""

    @abstractmethod
    def gather_values(self, value_S: torch.Tensor) -> torch.Tensor:
        """[T, K] values, zero for dropped slots."""


def pair_rows(ids_TK: torch.Tensor, num_experts: int) -> PairRows:
    """Order the pairs of `ids_TK` (int32 or int64, outside [0, E) dropped)."""
    if kernels.kernels_for(ids_TK.device):
        return _KernelPairs(routing_map(ids_TK, num_experts))
    return _SortedPairs(ids_TK, num_experts)


class _KernelPairs(PairRows):
    """By the kernels: no host synchronisation, a row is read once for all its pairs."""

    def __init__(self, where: RoutingMap) -> None:
        self.where = where
        self.counts_E = where.counts_E

    def scatter(self, x_TH: torch.Tensor, out_SH: torch.Tensor) -> None:
        from moe_dispatch.dispatch.kernels.move import scatter_rows

        scatter_rows(x_TH, self.where.position_TK, out_SH)

    def sum(self, rows_SH: torch.Tensor, out_TH: torch.Tensor) -> None:
        from moe_dispatch.dispatch.kernels.move import sum_slots

        sum_slots(rows_SH, self.where.position_TK, out_TH)

    def scatter_values(self, value_TK: torch.Tensor, pairs: int) -> torch.Tensor:
        return scatter_values(value_TK, self.where, value_TK.new_empty(pairs))

    def gather_values(self, value_S: torch.Tensor) -> torch.Tensor:
        return gather_values(value_S, self.where)


class _SortedPairs(PairRows):
    """By a radix sort and `embedding_bag`, which suit a CPU.

    `pair_S` is the flat (token * K + slot) of each pair; `bag_index_S` and `bag_offsets` group them by token again.
    """

    def __init__(self, ids_TK: torch.Tensor, num_experts: int) -> None:
        self.topk = ids_TK.shape[1]
        flat = ids_TK.reshape(-1)
        valid = (flat >= 0) & (flat < num_experts)
        key = torch.where(valid, flat, num_experts)
        counts_E1 = torch.bincount(key, minlength=num_experts + 1)
        self.counts_E = counts_E1[:-1]
        self.pair_S = stable_order(key, num_experts)[: int(flat.numel() - counts_E1[-1])]
        self.bag_index_S = inverse_order(self.pair_S, flat.numel())[valid]
        self.bag_offsets = offsets_from_counts(valid.view(-1, self.topk).sum(1))

    def scatter(self, x_TH: torch.Tensor, out_SH: torch.Tensor) -> None:
        gather_rows(x_TH, torch.div(self.pair_S, self.topk, rounding_mode="floor"), out_SH)

    def sum(self, rows_SH: torch.Tensor, out_TH: torch.Tensor) -> None:
        sum_rows(rows_SH, self.bag_index_S, self.bag_offsets, out_TH, whole=True)

    def scatter_values(self, value_TK: torch.Tensor, pairs: int) -> torch.Tensor:
        return value_TK.reshape(-1)[self.pair_S]

    def gather_values(self, value_S: torch.Tensor) -> torch.Tensor:
        out_TK = value_S.new_zeros(self.bag_offsets.numel() - 1, self.topk)
        out_TK.view(-1)[self.pair_S] = value_S
        return out_TK
