"""`alltoall`: every (token, expert) pair is a row of its own; the correctness baseline and the fallback.

Permute the T*K copies by expert, exchange them, and regroup the arrived blocks from (source, expert) to (expert,
source). Knob `form`: `collective` uses `all_to_all_single`; `p2p` posts all receives before the sends, which gloo moves
faster across a slow link (docs/two_nodes.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch.exchange import ExchangeDispatcher
from moe_dispatch.dispatch.ids import refuse_together
from moe_dispatch.dispatch.pair_rows import PairRows, pair_rows
from moe_dispatch.dispatch.rows import gather_rows, offsets_from_counts
from moe_dispatch.dispatch.wire import Arrival, Message, Wire

_COUNTS, _ROWS, _PROBS = 1, 2, 3
_FORMS = ("collective", "p2p")


@dataclass(frozen=True)
class AllToAllPlan:
    """Routing of one call. S sent pairs of this rank, R received rows, W ranks, e local experts.

    Fields:
        pairs: the rows to send, ordered by expert, then token.
        send_rows, recv_rows: rows to and from each rank.
        blocks_We: rows from source w for local expert e, int64 on the CPU.
        device: where rows live.
    """

    pairs: PairRows
    send_rows: tuple[int, ...]
    recv_rows: tuple[int, ...]
    blocks_We: torch.Tensor
    tokens_per_expert_e: torch.Tensor
    num_tokens: int
    device: torch.device

    @cached_property
    def to_expert_order(self) -> torch.Tensor:
        """Row numbers that turn (source, expert) blocks into (expert, source) blocks, on the device."""
        return _regroup_index(self.blocks_We).to(self.device)

    @cached_property
    def to_source_order(self) -> torch.Tensor:
        """The way back."""
        return _regroup_index(self.blocks_We.t()).to(self.device)


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
        ids_TK = ids_TK.to(self.device)
        pairs = pair_rows(ids_TK, self.num_experts)
        counts_WE = pairs.counts_E.view(self.world, self.local_experts)
        sent_We, blocks_We = self._exchange_counts(counts_WE, ids_TK)
        return AllToAllPlan(
            pairs=pairs,
            send_rows=tuple(sent_We.sum(1).tolist()),
            recv_rows=tuple(blocks_We.sum(1).tolist()),
            blocks_We=blocks_We,
            tokens_per_expert_e=blocks_We.sum(0),
            num_tokens=num_tokens,
            device=self.device,
        )

    def _exchange_counts(self, counts_WE: torch.Tensor, ids_TK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows I hold for each rank's experts and rows each source holds for mine, both [W, e] int64 on the CPU.

        A rank with an impossible request sends its refusal code instead of counts; all raise together. The only read
        of device memory by the host in a call.
        """
        mine = counts_WE.to(torch.int32).contiguous()
        if ids_TK.shape[0] > self.max_tokens:
            mine = torch.full_like(mine, -1 - ids_TK.shape[0])
        else:
            outside = ((ids_TK < -1) | (ids_TK >= self.num_experts)).any()
            mine = torch.where(outside, mine.new_full((), -1), mine)
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
        sent, blocks = torch.stack([mine, theirs]).to("cpu", torch.int64).unbind()
        refuse_together(blocks[:, 0].tolist(), self.num_experts, self.max_tokens)
        return sent, blocks

    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: AllToAllPlan) -> _InFlight:
        """Permute by expert, then start the exchange."""
        sent = self.pool.empty((sum(plan.send_rows), self.hidden), self.dtype)
        plan.pairs.scatter(x_TH, sent)
        sent_probs = None if probs_TK is None else plan.pairs.scatter_values(probs_TK.to(self.device), sent.shape[0])
        return self._start(sent, sent_probs, plan.send_rows, plan.recv_rows, plan)

    def scatter_finish(self, handle: _InFlight) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Wait, then regroup (source, expert) blocks to (expert, source)."""
        handle.finish()
        rows = self._to_expert_order(handle.rows, handle.plan)
        probs = None if handle.probs is None else self._to_expert_order(handle.probs, handle.plan)
        return rows, probs

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: AllToAllPlan) -> _InFlight:
        """Regroup to (source, expert), then start the way back."""
        rows = self._to_source_order(y_RH.contiguous(), plan)
        probs = None if probs_grad_R is None else self._to_source_order(probs_grad_R.contiguous(), plan)
        return self._start(rows, probs, plan.recv_rows, plan.send_rows, plan)

    def gather_finish(self, handle: _InFlight) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Wait, then sum each token's rows in slot order."""
        handle.finish()
        plan = handle.plan
        out = self.pool.empty((plan.num_tokens, self.hidden), self.dtype)
        plan.pairs.sum(handle.rows, out)
        return out, None if handle.probs is None else plan.pairs.gather_values(handle.probs)

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

    def _to_expert_order(self, rows: torch.Tensor, plan: AllToAllPlan) -> torch.Tensor:
        if 1 in plan.blocks_We.shape:
            return rows
        if rows.device.type == "cpu":
            return self._regrouped(rows, plan.blocks_We)
        return _reordered(rows, plan.to_expert_order)

    def _to_source_order(self, rows: torch.Tensor, plan: AllToAllPlan) -> torch.Tensor:
        if 1 in plan.blocks_We.shape:
            return rows
        if rows.device.type == "cpu":
            return self._regrouped(rows, plan.blocks_We.t())
        return _reordered(rows, plan.to_source_order)

    def _regrouped(self, rows: torch.Tensor, blocks_AB: torch.Tensor) -> torch.Tensor:
        """Blocks in (a, b) order to (b, a) order, block by block."""
        target = self.pool.empty(rows.shape, rows.dtype)
        parts = rows.split(blocks_AB.reshape(-1).tolist())
        columns = blocks_AB.shape[1]
        torch.cat([part for b in range(columns) for part in parts[b::columns]], out=target)
        return target


def _reordered(rows: torch.Tensor, index_R: torch.Tensor) -> torch.Tensor:
    return rows[index_R] if rows.dim() == 1 else gather_rows(rows, index_R, torch.empty_like(rows))


def _regroup_index(blocks_AB: torch.Tensor) -> torch.Tensor:
    """Row numbers that turn (a, b) block order into (b, a); int64 on the CPU."""
    starts = offsets_from_counts(blocks_AB.reshape(-1))[:-1].view(blocks_AB.shape)
    sizes, first = blocks_AB.t().reshape(-1), starts.t().reshape(-1)
    base = torch.repeat_interleave(first - offsets_from_counts(sizes)[:-1], sizes)
    return base + torch.arange(int(sizes.sum()))
