"""`alltoall`: every (token, expert) pair is a row of its own; the correctness baseline and the fallback.

Permute the T*K copies by expert, exchange them, and regroup the arrived blocks from (source, expert) to (expert,
source). Knob `form`: `collective` uses `all_to_all_single`; `p2p` posts all receives before the sends, which gloo moves
faster across a slow link (docs/two_nodes.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch.exchange import ExchangeDispatcher
from moe_dispatch.dispatch.ids import refusal, refuse_together
from moe_dispatch.dispatch.order import inverse_order, stable_order
from moe_dispatch.dispatch.rows import gather_rows, offsets_from_counts, sum_rows
from moe_dispatch.dispatch.wire import Arrival, Message, Wire

_COUNTS, _ROWS, _PROBS = 1, 2, 3
_FORMS = ("collective", "p2p")


@dataclass(frozen=True)
class AllToAllPlan:
    """Routing of one call. S sent pairs of this rank, R received rows, W ranks, e local experts.

    Fields:
        pair_S: flat (token * K + slot) of each sent row, ordered by expert, then token.
        bag_index_S, bag_offsets: for the combine, positions in the sent order, grouped by token.
        send_rows, recv_rows: rows to and from each rank.
        blocks_We: rows from source w for local expert e.
    """

    pair_S: torch.Tensor
    bag_index_S: torch.Tensor
    bag_offsets: torch.Tensor
    send_rows: tuple[int, ...]
    recv_rows: tuple[int, ...]
    blocks_We: torch.Tensor
    tokens_per_expert_e: torch.Tensor
    num_tokens: int


@dataclass
class _InFlight:
    plan: AllToAllPlan
    wire: Wire
    rows: torch.Tensor
    sent: tuple[torch.Tensor, ...]
    probs: torch.Tensor | None
    waits: list[dist.Work | Arrival]

    def finish(self) -> None:
        for wait in self.waits:
            wait.wait()
        self.wire.drain()


class AllToAllDispatcher(ExchangeDispatcher):
    """See the module. Construction makes no communication; `dispatch` and `combine` are collective."""

    name = "alltoall"
    combine_roundings = 1

    def configure(self) -> None:
        """See `ExchangeDispatcher.configure`."""
        unknown = set(self.knobs) - {"form"}
        form = self.knobs.get("form", "collective")
        if unknown or form not in _FORMS:
            raise UsageError(f"alltoall: knobs {self.knobs} are not valid; allowed: form={' or form='.join(_FORMS)}")
        self.form = str(form)

    def make_plan(self, ids_TK: torch.Tensor, num_tokens: int) -> AllToAllPlan:
        """Sort pairs by expert and exchange row counts; collective."""
        flat = ids_TK.reshape(-1).to(self.device)
        valid = (flat >= 0) & (flat < self.num_experts)
        key = torch.where(valid, flat, self.num_experts)
        counts_E1 = torch.bincount(key, minlength=self.num_experts + 1)
        pair_S = stable_order(key, self.num_experts)[: int(flat.numel() - counts_E1[-1])]
        sent_at = inverse_order(pair_S, flat.numel())
        counts_WE = counts_E1[:-1].view(self.world, self.local_experts)
        blocks_We = self._exchange_counts(counts_WE, refusal(ids_TK, self.num_experts, self.max_tokens))
        return AllToAllPlan(
            pair_S=pair_S,
            bag_index_S=sent_at[valid],
            bag_offsets=offsets_from_counts(valid.view(-1, self.topk).sum(1)),
            send_rows=tuple(counts_WE.sum(1).tolist()),
            recv_rows=tuple(blocks_We.sum(1).tolist()),
            blocks_We=blocks_We,
            tokens_per_expert_e=blocks_We.sum(0),
            num_tokens=num_tokens,
        )

    def _exchange_counts(self, counts_WE: torch.Tensor, code: int) -> torch.Tensor:
        """Rows each source holds for my experts, [W, e] int64 on the CPU. A rank with a refusal code says so; all raise
        together.
        """
        mine = counts_WE.to(torch.int32).contiguous()
        if code:
            mine = torch.full_like(mine, code)
        theirs = torch.empty_like(mine)
        theirs[self.rank] = mine[self.rank]
        peers = [p for p in range(self.world) if p != self.rank]
        wire = Wire(self.group)
        arrivals = wire.exchange(
            [Message(theirs[p], p, _COUNTS) for p in peers], [Message(mine[p], p, _COUNTS) for p in peers]
        )
        for arrival in arrivals:
            arrival.wait()
        wire.drain()
        blocks = theirs.to("cpu", torch.int64)
        refuse_together(blocks[:, 0].tolist(), self.num_experts, self.max_tokens)
        return blocks

    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: AllToAllPlan) -> _InFlight:
        """Permute by expert, then start the exchange."""
        token_S = torch.div(plan.pair_S, self.topk, rounding_mode="floor")
        sent = self.pool.empty((token_S.numel(), self.hidden), self.dtype)
        gather_rows(x_TH, token_S, sent)
        sent_probs = None if probs_TK is None else probs_TK.reshape(-1).to(self.device)[plan.pair_S]
        return self._start(sent, sent_probs, plan.send_rows, plan.recv_rows, plan)

    def scatter_finish(self, handle: _InFlight) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Wait, then regroup (source, expert) blocks to (expert, source)."""
        handle.finish()
        blocks = handle.plan.blocks_We
        rows = self._regroup(handle.rows, blocks)
        probs = None if handle.probs is None else self._regroup(handle.probs, blocks)
        return rows, probs

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: AllToAllPlan) -> _InFlight:
        """Regroup to (source, expert), then start the way back."""
        blocks_eW = plan.blocks_We.t()
        rows = self._regroup(y_RH.contiguous(), blocks_eW)
        probs = None if probs_grad_R is None else self._regroup(probs_grad_R.contiguous(), blocks_eW)
        return self._start(rows, probs, plan.recv_rows, plan.send_rows, plan)

    def gather_finish(self, handle: _InFlight) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Wait, then sum each token's rows in slot order."""
        handle.finish()
        plan = handle.plan
        out = self.pool.empty((plan.num_tokens, self.hidden), self.dtype)
        sum_rows(handle.rows, plan.bag_index_S, plan.bag_offsets, out, whole=True)
        if handle.probs is None:
            return out, None
        grad = handle.probs.new_zeros(plan.num_tokens * self.topk)
        grad[plan.pair_S] = handle.probs
        return out, grad.view(plan.num_tokens, self.topk)

    def _start(
        self,
        sent: torch.Tensor,
        sent_probs: torch.Tensor | None,
        send_rows: tuple[int, ...],
        recv_rows: tuple[int, ...],
        plan: AllToAllPlan,
    ) -> _InFlight:
        rows = self.pool.empty((sum(recv_rows), self.hidden), self.dtype)
        probs = None if sent_probs is None else sent_probs.new_empty(sum(recv_rows))
        wire = Wire(self.group)
        pairs = [(sent, rows, _ROWS)] + ([] if sent_probs is None or probs is None else [(sent_probs, probs, _PROBS)])
        waits: list[dist.Work | Arrival] = []
        if self.form == "collective" and self.world > 1:
            for source, target, _ in pairs:
                work = dist.all_to_all_single(
                    target, source, list(recv_rows), list(send_rows), group=self.group, async_op=True
                )
                waits.append(work)
        else:
            waits.extend(self._post(wire, pairs, send_rows, recv_rows))
        return _InFlight(plan, wire, rows, tuple(source for source, _, _ in pairs), probs, waits)

    def _post(
        self,
        wire: Wire,
        pairs: list[tuple[torch.Tensor, torch.Tensor, int]],
        send_rows: tuple[int, ...],
        recv_rows: tuple[int, ...],
    ) -> list[Arrival]:
        receives, sends = [], []
        for source, target, kind in pairs:
            outgoing, incoming = source.split(send_rows), target.split(recv_rows)
            incoming[self.rank].copy_(outgoing[self.rank])
            peers = [(self.rank + step) % self.world for step in range(1, self.world)]
            receives += [Message(incoming[p], p, kind) for p in peers if recv_rows[p]]
            sends += [Message(outgoing[p], p, kind) for p in peers if send_rows[p]]
        return wire.exchange(receives, sends)

    def _regroup(self, rows: torch.Tensor, blocks_AB: torch.Tensor) -> torch.Tensor:
        """Blocks in (a, b) order to (b, a) order; a copy, or `rows` itself when there is one row of blocks."""
        if 1 in blocks_AB.shape:
            return rows
        target = self.pool.empty(rows.shape, rows.dtype)
        if rows.device.type != "cpu":
            return gather_rows(rows, _regroup_index(blocks_AB).to(rows.device), target)
        parts = rows.split(blocks_AB.reshape(-1).tolist())
        columns = blocks_AB.shape[1]
        torch.cat([part for b in range(columns) for part in parts[b::columns]], out=target)
        return target


def _regroup_index(blocks_AB: torch.Tensor) -> torch.Tensor:
    """Row numbers that turn (a, b) block order into (b, a); int64 on the CPU."""
    starts = offsets_from_counts(blocks_AB.reshape(-1))[:-1].view(blocks_AB.shape)
    sizes, first = blocks_AB.t().reshape(-1), starts.t().reshape(-1)
    base = torch.repeat_interleave(first - offsets_from_counts(sizes)[:-1], sizes)
    return base + torch.arange(int(sizes.sum()))
