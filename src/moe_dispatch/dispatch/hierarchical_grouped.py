"""The two-stage exchange as at most two group calls each way, for NCCL: rows of one stage move together, then are
expanded by one gather or added up by one reduction; kernel launches cost more there than overlap in a stage gains.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from moe_dispatch.dispatch import pairs
from moe_dispatch.dispatch.domains import Domains
from moe_dispatch.dispatch.hierarchical_plan import HierarchicalPlan, rail_sources
from moe_dispatch.dispatch.pool import BufferPool
from moe_dispatch.dispatch.rows import gather_rows, sum_rows
from moe_dispatch.dispatch.wire import Arrival, Message, Wire

_ROWS = 2


@dataclass
class Moving:
    """A scatter or gather under way: `buffer` is the landing buffer of a scatter, the sections of a gather."""

    plan: HierarchicalPlan
    wire: Wire
    buffer: torch.Tensor
    arrivals: list[Arrival]
    probs: pairs.PairBuffers | None
    kept: list[torch.Tensor] = field(default_factory=list)

    def wait(self) -> None:
        """Everything posted so far has arrived (on the current stream)."""
        for arrival in self.arrivals:
            arrival.wait()
        self.arrivals = []


class GroupedExchange:
    """Executor over NCCL; plans must have one chunk. All methods are collective."""

    def __init__(
        self, group: dist.ProcessGroup, domains: Domains, pool: BufferPool, hidden: int, dtype: torch.dtype
    ) -> None:
        self.group, self.domains, self.pool = group, domains, pool
        self.hidden, self.dtype = hidden, dtype
        self.rank = dist.get_rank(group)
        self.rails = rail_sources(domains)

    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: HierarchicalPlan) -> Moving:
        """First stage: rows across domains and rows inside the own domain, in one group call."""
        local, size = plan.local, self.domains.size
        landing = self._empty(sum(local.landing_rows))
        parts = landing.split(local.landing_rows)
        parts[self.rank].copy_(x_TH)
        outgoing = [(self._rail_peer(d), plan.wire.tokens[d]) for d in self.domains.remote]
        outgoing += [(p, local.direct_tokens[p % size]) for p in self.domains.peers]
        sends = [Message(self._gathered(x_TH, tokens), p, _ROWS) for p, tokens in outgoing if tokens.numel()]
        sources = [*self.rails, *self.domains.peers]
        receives = [Message(parts[s], s, _ROWS) for s in sources if local.landing_rows[s]]
        probs = None if probs_TK is None else pairs.scatter_buffers(probs_TK, local.pairs)
        if probs is not None:
            sends, receives = sends + probs.sends, receives + probs.receives
        wire = Wire(self.group)
        kept = [message.tensor for message in sends]
        return Moving(plan, wire, landing, wire.exchange(receives, sends), probs, kept)

    def scatter_finish(self, moving: Moving) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Second stage: pass wire rows on inside the domain; then expand everything with one gather."""
        moving.wait()
        plan, local, size = moving.plan, moving.plan.local, self.domains.size
        parts = moving.buffer.split(local.landing_rows)
        sends, receives = [], []
        for p in self.domains.peers:
            for s in self.rails:
                index = local.forward_index[s][p % size]
                if index.numel():
                    sends.append(Message(self._gathered(parts[s], index), p, _ROWS))
            receives += [Message(parts[s], p, _ROWS) for s in self._sources_on_rail_of(p) if local.landing_rows[s]]
        moving.kept += [message.tensor for message in sends]
        moving.arrivals = moving.wire.exchange(receives, sends)
        moving.wait()
        moving.wire.drain()
        bases = torch.tensor([sum(local.landing_rows[:s]) for s in range(len(local.landing_rows))])
        index_R = local.expand_index_R + bases.to(local.source_R.device)[local.source_R]
        rows = gather_rows(moving.buffer, index_R, self._empty(index_R.numel()))
        return rows, None if moving.probs is None else pairs.received_probs(moving.probs, plan.local.pairs)

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: HierarchicalPlan) -> Moving:
        """First stage: this rank's sums go to their source in the own domain, or to the rail's rank of the domain."""
        local, size, mine = plan.local, self.domains.size, self.domains.local
        counts = [cum[-1][mine] for cum in local.cum_rank]
        partial = self._empty(sum(counts))
        sum_rows(y_RH.contiguous(), local.sum_pairs.index, local.sum_pairs.offsets, partial, whole=True)
        parts = partial.split(counts)
        buffer = self._empty(local.section_base[-1])
        sections = [buffer[local.section_base[p] : local.section_base[p + 1]] for p in range(size)]
        sections[mine].copy_(parts[self.rank])
        meeting = {s: self._empty(sum(local.cum_rank[s][-1])) for s in self.rails}
        spans = {s: meeting[s].split(local.cum_rank[s][-1]) for s in self.rails}
        for s in self.rails:
            spans[s][mine].copy_(parts[s])
        sends, receives = [], []
        for p in self.domains.peers:
            wanted = [p, *self._sources_on_rail_of(p)]
            sends += [Message(parts[s], p, _ROWS) for s in wanted if counts[s]]
            arriving = [sections[p % size], *(spans[s][p % size] for s in self.rails)]
            receives += [Message(rows, p, _ROWS) for rows in arriving if rows.shape[0]]
        probs = None if probs_grad_R is None else pairs.gather_buffers(probs_grad_R.contiguous(), local.pairs)
        if probs is not None:
            sends, receives = sends + probs.sends, receives + probs.receives
        wire = Wire(self.group)
        moving = Moving(plan, wire, buffer, wire.exchange(receives, sends), probs, [partial])
        self._send_domain_sums(moving, meeting)
        return moving

    def gather_finish(self, moving: Moving) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Add up the sections of every token."""
        moving.wait()
        moving.wire.drain()
        plan, sums = moving.plan, moving.plan.local.final_sums
        out = sum_rows(moving.buffer, sums.index, sums.offsets, self._empty(plan.num_tokens), whole=True)
        return out, None if moving.probs is None else pairs.returned_grad(moving.probs, plan.local.pairs)

    def _send_domain_sums(self, moving: Moving, meeting: dict[int, torch.Tensor]) -> None:
        """Second stage: whole sums of the domain cross back along the rail."""
        if not self.rails:
            return
        moving.wait()
        plan, local, size = moving.plan, moving.plan.local, self.domains.size
        sends, receives = [], []
        for s in self.rails:
            rows = plan.wire.into[s][-1]
            if rows:
                bags = local.domain_sums[s]
                sends.append(
                    Message(sum_rows(meeting[s], bags.index, bags.offsets, self._empty(rows), whole=True), s, _ROWS)
                )
        for i, d in enumerate(self.domains.remote):
            section = moving.buffer[local.section_base[size + i] : local.section_base[size + i + 1]]
            if section.shape[0]:
                receives.append(Message(section, self._rail_peer(d), _ROWS))
        moving.kept += [message.tensor for message in sends]
        moving.arrivals = moving.wire.exchange(receives, sends)

    def _gathered(self, source: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return gather_rows(source, index, self._empty(index.numel()))

    def _sources_on_rail_of(self, peer: int) -> list[int]:
        return [d * self.domains.size + peer % self.domains.size for d in self.domains.remote]

    def _rail_peer(self, domain: int) -> int:
        return domain * self.domains.size + self.domains.local

    def _empty(self, rows: int) -> torch.Tensor:
        return self.pool.empty((rows, self.hidden), self.dtype)
