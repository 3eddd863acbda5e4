"""`allgather`: every rank gets every token and keeps the rows of its own experts; partial sums return to each source.

Simple, and good for small groups where most ranks need most tokens anyway; its traffic grows with the group, not with
top-k.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch import pairs
from moe_dispatch.dispatch.agree import require_equal
from moe_dispatch.dispatch.exchange import ExchangeDispatcher
from moe_dispatch.dispatch.ids import share_expert_ids
from moe_dispatch.dispatch.order import inverse_order
from moe_dispatch.dispatch.rows import gather_rows, offsets_from_counts, sum_rows
from moe_dispatch.dispatch.wire import Arrival, Message, Wire

_ROWS = 2


@dataclass(frozen=True)
class AllGatherPlan:
    """Routing of one call.

    Fields:
        tokens: token count of each rank.
        index_R: row of the gathered tokens behind each received row.
        bag_index_R, bag_offsets: received rows of each gathered token, for the way back.
        route: the way of the routing weights.
    """

    tokens: list[int]
    index_R: torch.Tensor
    bag_index_R: torch.Tensor
    bag_offsets: torch.Tensor
    tokens_per_expert_e: torch.Tensor
    route: pairs.PairRoute


@dataclass
class _InFlight:
    plan: AllGatherPlan
    wire: Wire
    rows: torch.Tensor
    kept: torch.Tensor
    probs: pairs.PairBuffers | None
    arrivals: list[Arrival]

    def finish(self) -> None:
        for arrival in self.arrivals:
            arrival.wait()
        self.wire.drain()


class AllGatherDispatcher(ExchangeDispatcher):
    """See the module. Partial sums are rounded once on each rank and once at the token."""

    name = "allgather"
    combine_roundings = 2

    def configure(self) -> None:
        """See `ExchangeDispatcher.configure`."""
        if self.knobs:
            raise UsageError(f"allgather: knobs {self.knobs} are not valid; it has none")
        require_equal(self.group, self.name, {"max_tokens": self.max_tokens})  # it sizes the message of ids

    def make_plan(self, ids_TK: torch.Tensor, num_tokens: int) -> AllGatherPlan:
        """Share expert ids; collective."""
        ids_WMK, tokens = share_expert_ids(self.group, ids_TK, self.num_experts, self.max_tokens, self.device)
        served = pairs.local_pairs(ids_WMK, self.rank, self.local_experts)
        real_N = torch.cat([torch.arange(self.max_tokens, device=ids_WMK.device) < t for t in tokens])
        row_N = torch.cumsum(real_N, 0) - 1
        pairs_N = torch.bincount(served.token_nat_R, minlength=real_N.numel())[real_N]
        offsets = offsets_from_counts(pairs_N)
        ends = offsets_from_counts(torch.tensor(tokens))
        at = offsets[ends.to(offsets.device)].tolist()
        owner = torch.div(ids_WMK[self.rank].to(torch.int64), self.local_experts, rounding_mode="floor")
        recv_counts = [after - before for before, after in pairwise(at)]
        return AllGatherPlan(
            tokens=tokens,
            index_R=row_N[served.token_R],
            bag_index_R=inverse_order(served.order_R),
            bag_offsets=offsets,
            tokens_per_expert_e=torch.bincount(served.expert_nat_R, minlength=self.local_experts).cpu(),
            route=pairs.pair_route(owner, num_tokens, self.world, self.rank, recv_counts, served.order_R),
        )

    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: AllGatherPlan) -> _InFlight:
        """Send every token to every rank."""
        x_TH = x_TH.contiguous()
        gathered = self.pool.empty((sum(plan.tokens), self.hidden), self.dtype)
        parts = gathered.split(plan.tokens)
        parts[self.rank].copy_(x_TH)
        probs = None if probs_TK is None else pairs.scatter_buffers(probs_TK, plan.route)
        return self._start(plan, gathered, x_TH, probs, list(parts), [x_TH] * self.world)

    def scatter_finish(self, handle: _InFlight) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pick the rows of my experts."""
        handle.finish()
        plan = handle.plan
        rows = self.pool.empty((plan.index_R.numel(), self.hidden), self.dtype)
        gather_rows(handle.rows, plan.index_R, rows)
        return rows, None if handle.probs is None else pairs.received_probs(handle.probs, plan.route)

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: AllGatherPlan) -> _InFlight:
        """Sum my rows for every token of the group and send each source its part."""
        partial = self.pool.empty((sum(plan.tokens), self.hidden), self.dtype)
        sum_rows(y_RH.contiguous(), plan.bag_index_R, plan.bag_offsets, partial, whole=True)
        mine = plan.tokens[self.rank]
        sections = self.pool.empty((self.world * mine, self.hidden), self.dtype)
        parts = sections.split([mine] * self.world)
        outgoing = partial.split(plan.tokens)
        parts[self.rank].copy_(outgoing[self.rank])
        probs = None if probs_grad_R is None else pairs.gather_buffers(probs_grad_R.contiguous(), plan.route)
        return self._start(plan, sections, partial, probs, list(parts), list(outgoing))

    def gather_finish(self, handle: _InFlight) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Add the ranks' parts; float32 inside."""
        handle.finish()
        plan = handle.plan
        out = handle.rows.view(self.world, plan.tokens[self.rank], self.hidden).sum(0)
        return out, None if handle.probs is None else pairs.returned_grad(handle.probs, plan.route)

    def _start(
        self,
        plan: AllGatherPlan,
        rows: torch.Tensor,
        kept: torch.Tensor,
        probs: pairs.PairBuffers | None,
        incoming: list[torch.Tensor],
        outgoing: list[torch.Tensor],
    ) -> _InFlight:
        peers = [(self.rank + step) % self.world for step in range(1, self.world)]
        receives = [Message(incoming[p], p, _ROWS) for p in peers if incoming[p].shape[0]]
        sends = [Message(outgoing[p], p, _ROWS) for p in peers if outgoing[p].shape[0]]
        if probs is not None:
            receives, sends = receives + probs.receives, sends + probs.sends
        wire = Wire(self.group)
        return _InFlight(plan, wire, rows, kept, probs, wire.exchange(receives, sends))
