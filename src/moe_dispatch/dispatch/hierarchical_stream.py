"""The two-stage exchange as a stream of messages, for gloo: chunks cross the wire while rows of the own node are
expanded.

Order of work in `scatter`: post the wire's receives, send wire chunks, only then build the rest of the plan; send rows
to the own domain; expand own rows, then the domain's; forward each wire chunk that arrives, then expand it. `gather` is
the mirror image. What decides the speed is measured in docs/two_nodes.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from moe_dispatch.dispatch import pairs
from moe_dispatch.dispatch.domains import Domains
from moe_dispatch.dispatch.hierarchical_plan import HierarchicalPlan, LocalPlan, rail_sources
from moe_dispatch.dispatch.pool import BufferPool
from moe_dispatch.dispatch.rows import gather_rows, sum_rows
from moe_dispatch.dispatch.wire import Arrival, Message, Wire

_DIRECT, _WIRE, _FORWARD = 2, 3, 4


@dataclass
class Scatter:
    """A scatter under way: rows that arrive, by source or (source, chunk), and where they are expanded to."""

    plan: HierarchicalPlan
    wire: Wire
    rows: torch.Tensor | None = None
    landing: dict[int, torch.Tensor] = field(default_factory=dict)
    direct: dict[int, Arrival] = field(default_factory=dict)
    crossing: dict[tuple[int, int], Arrival] = field(default_factory=dict)
    forwarded: dict[tuple[int, int], Arrival] = field(default_factory=dict)
    probs: pairs.PairBuffers | None = None
    probs_waits: list[Arrival] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Gather:
    """A gather under way: sections of partial sums for this rank's tokens, and buffers where a domain's sums meet."""

    plan: HierarchicalPlan
    wire: Wire
    sections: torch.Tensor
    meeting: dict[int, torch.Tensor] = field(default_factory=dict)
    partials: dict[tuple[int, int], list[Arrival]] = field(default_factory=dict)
    direct: list[Arrival] = field(default_factory=list)
    crossing: dict[tuple[int, int], Arrival] = field(default_factory=dict)
    probs: pairs.PairBuffers | None = None
    probs_waits: list[Arrival] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)


class StreamExchange:
    """Executor over gloo. All methods are collective; rows are contiguous tensors of `hidden` elements of `dtype`."""

    def __init__(
        self, group: dist.ProcessGroup, domains: Domains, pool: BufferPool, hidden: int, dtype: torch.dtype
    ) -> None:
        self.group, self.domains, self.pool = group, domains, pool
        self.hidden, self.dtype = hidden, dtype
        self.rank = dist.get_rank(group)
        self.rails = rail_sources(domains)

    # ---------------------------------------------------------------------------------------------- scatter

    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: HierarchicalPlan) -> Scatter:
        """Start the wire, then build the rest of the plan, send to the own domain and expand own rows."""
        moving = Scatter(plan, Wire(self.group))
        self._start_wire(moving, x_TH)
        local = plan.local
        moving.rows = self._empty(local.expand_index_R.numel())
        self._post_domain_receives(moving)
        if probs_TK is not None:
            moving.probs = pairs.scatter_buffers(probs_TK, local.pairs)
            moving.probs_waits = [moving.wire.receive(message) for message in moving.probs.receives]
        for p in self.domains.peers:
            self._send_rows(moving, x_TH, local.direct_tokens[p % self.domains.size], p, _DIRECT, 0)
        if moving.probs is not None:
            for message in moving.probs.sends:
                moving.wire.send(message)
        moving.landing[self.rank] = x_TH
        self._expand(moving, self.rank, 0, plan.chunks)
        return moving

    def scatter_finish(self, moving: Scatter) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Expand what arrives, forwarding wire chunks on the way."""
        plan = moving.plan
        for p, arrival in moving.direct.items():
            arrival.wait()
            self._expand(moving, p, 0, plan.chunks)
        for c in range(plan.chunks):
            for s in self.rails:
                if (s, c) in moving.crossing:
                    moving.crossing[s, c].wait()
                    self._forward(moving, s, c)
                    self._expand(moving, s, c, c + 1)
            for (s, chunk), arrival in moving.forwarded.items():
                if chunk == c:
                    arrival.wait()
                    self._expand(moving, s, c, c + 1)
        for arrival in moving.probs_waits:
            arrival.wait()
        moving.wire.drain()
        assert moving.rows is not None
        return moving.rows, None if moving.probs is None else pairs.received_probs(moving.probs, plan.local.pairs)

    def _start_wire(self, moving: Scatter, x_TH: torch.Tensor) -> None:
        crossing, chunks = moving.plan.wire, moving.plan.chunks
        for s in self.rails:
            moving.landing[s] = self._empty(crossing.into[s][-1])
        for c in range(chunks):
            for s in self.rails:
                rows = moving.landing[s][crossing.into[s][c] : crossing.into[s][c + 1]]
                if rows.shape[0]:
                    moving.crossing[s, c] = moving.wire.receive(Message(rows, s, _WIRE, c))
        for c in range(chunks):
            for d in self.domains.remote:
                tokens = crossing.tokens[d][crossing.out[c][d] : crossing.out[c + 1][d]]
                self._send_rows(moving, x_TH, tokens, self._rail_peer(d), _WIRE, c)

    def _post_domain_receives(self, moving: Scatter) -> None:
        plan, local = moving.plan.local, self.domains.local
        for p in self.domains.peers:
            moving.landing[p] = self._empty(plan.landing_rows[p])
            if plan.landing_rows[p]:
                moving.direct[p] = moving.wire.receive(Message(moving.landing[p], p, _DIRECT))
        for p in self.domains.peers:
            for s in self._sources_on_rail_of(p):
                moving.landing[s] = self._empty(plan.landing_rows[s])
        for c in range(moving.plan.chunks):
            for p in self.domains.peers:
                for s in self._sources_on_rail_of(p):
                    rows = moving.landing[s][plan.cum_rank[s][c][local] : plan.cum_rank[s][c + 1][local]]
                    if rows.shape[0]:
                        message = Message(rows, p, _FORWARD, self._chunk_tag(s, c))
                        moving.forwarded[s, c] = moving.wire.receive(message)

    def _forward(self, moving: Scatter, s: int, c: int) -> None:
        plan = moving.plan.local
        for p in self.domains.peers:
            local = p % self.domains.size
            index = plan.forward_index[s][local][plan.cum_rank[s][c][local] : plan.cum_rank[s][c + 1][local]]
            self._send_rows(moving, moving.landing[s], index, p, _FORWARD, self._chunk_tag(s, c))

    def _expand(self, moving: Scatter, s: int, c0: int, c1: int) -> None:
        """Copy rows of source s, chunks [c0, c1), to their place under every local expert."""
        first, last = s * moving.plan.chunks + c0, s * moving.plan.chunks + c1
        index_R, source, rows = moving.plan.local.expand_index_R, moving.landing[s], moving.rows
        assert rows is not None
        for starts in moving.plan.local.segment_start:
            low, high = starts[first], starts[last]
            if high > low:
                gather_rows(source, index_R[low:high], rows[low:high])

    # ----------------------------------------------------------------------------------------------- gather

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: HierarchicalPlan) -> Gather:
        """Add up this rank's rows, meet the domain's partial sums, and send whole sums across, chunk by chunk."""
        y_RH = y_RH.contiguous()
        local = plan.local
        moving = Gather(plan, Wire(self.group), self._empty(local.section_base[-1]))
        self._post_gather_receives(moving)
        if probs_grad_R is not None:
            moving.probs = pairs.gather_buffers(probs_grad_R.contiguous(), local.pairs)
            moving.probs_waits = [moving.wire.receive(message) for message in moving.probs.receives]
        for c in range(plan.chunks):
            for p in self.domains.peers:
                for s in self._sources_on_rail_of(p):
                    self._send_partial(moving, y_RH, s, (c, c + 1), p, _FORWARD, self._chunk_tag(s, c))
            for s in self.rails:
                self._send_domain_sum(moving, y_RH, s, c)
        for p in self.domains.peers:
            self._send_partial(moving, y_RH, p, (0, plan.chunks), p, _DIRECT, 0)
        if moving.probs is not None:
            for message in moving.probs.sends:
                moving.wire.send(message)
        own = self.domains.local
        section = moving.sections[local.section_base[own] : local.section_base[own + 1]]
        self._partial(y_RH, local, self.rank, (0, plan.chunks), section)
        return moving

    def gather_finish(self, moving: Gather) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Final sums, chunk by chunk as remote sums arrive."""
        plan, sums = moving.plan, moving.plan.local.final_sums
        for arrival in moving.direct:
            arrival.wait()
        out = self._empty(plan.num_tokens)
        for c in range(plan.chunks):
            for (_, chunk), arrival in moving.crossing.items():
                if chunk == c:
                    arrival.wait()
            t0, t1 = plan.token_bounds[c], plan.token_bounds[c + 1]
            sum_rows(moving.sections, sums.index, sums.offsets[t0 : t1 + 1], out[t0:t1])
        for arrival in moving.probs_waits:
            arrival.wait()
        moving.wire.drain()
        return out, None if moving.probs is None else pairs.returned_grad(moving.probs, plan.local.pairs)

    def _post_gather_receives(self, moving: Gather) -> None:
        plan, local, size = moving.plan, moving.plan.local, self.domains.size
        if size > 1:
            moving.meeting = {s: self._empty(sum(local.cum_rank[s][-1])) for s in self.rails}
        for c in range(plan.chunks):
            for s in self.rails:
                moving.partials[s, c] = []
                for p in self.domains.peers:
                    low, high = _partial_span(local, s, c, p % size)
                    if high > low:
                        message = Message(moving.meeting[s][low:high], p, _FORWARD, self._chunk_tag(s, c))
                        moving.partials[s, c].append(moving.wire.receive(message))
        for c in range(plan.chunks):
            for i, d in enumerate(self.domains.remote):
                first = local.section_base[size + i]
                rows = moving.sections[first + plan.wire.out[c][d] : first + plan.wire.out[c + 1][d]]
                if rows.shape[0]:
                    moving.crossing[d, c] = moving.wire.receive(Message(rows, self._rail_peer(d), _WIRE, c))
        for p in self.domains.peers:
            low, high = local.section_base[p % size], local.section_base[p % size + 1]
            if high > low:
                moving.direct.append(moving.wire.receive(Message(moving.sections[low:high], p, _DIRECT)))

    def _partial(
        self, y_RH: torch.Tensor, plan: LocalPlan, s: int, chunks: tuple[int, int], out: torch.Tensor
    ) -> torch.Tensor:
        """This rank's sum for each token of source s, chunks [first, last), that it holds experts of."""
        local = self.domains.local
        before = sum(plan.cum_rank[q][-1][local] for q in range(s))
        b0, b1 = (before + plan.cum_rank[s][c][local] for c in chunks)
        return sum_rows(y_RH, plan.sum_pairs.index, plan.sum_pairs.offsets[b0 : b1 + 1], out)

    def _send_partial(
        self, moving: Gather, y_RH: torch.Tensor, s: int, chunks: tuple[int, int], peer: int, kind: int, tag: int
    ) -> None:
        plan, local = moving.plan.local, self.domains.local
        rows = self._empty(plan.cum_rank[s][chunks[1]][local] - plan.cum_rank[s][chunks[0]][local])
        self._send(moving, self._partial(y_RH, plan, s, chunks, rows), peer, kind, tag)

    def _send_domain_sum(self, moving: Gather, y_RH: torch.Tensor, s: int, c: int) -> None:
        """Add the domain's partial sums for chunk c of rail source s and send the result across."""
        plan = moving.plan.local
        if s not in moving.meeting:
            self._send_partial(moving, y_RH, s, (c, c + 1), s, _WIRE, c)
            return
        low, high = _partial_span(plan, s, c, self.domains.local)
        self._partial(y_RH, plan, s, (c, c + 1), moving.meeting[s][low:high])
        for arrival in moving.partials[s, c]:
            arrival.wait()
        bags, (b0, b1) = plan.domain_sums[s], moving.plan.wire.into[s][c : c + 2]
        total = sum_rows(moving.meeting[s], bags.index, bags.offsets[b0 : b1 + 1], self._empty(b1 - b0))
        self._send(moving, total, s, _WIRE, c)

    # ----------------------------------------------------------------------------------------------- common

    def _send_rows(
        self, moving: Scatter, source: torch.Tensor, index: torch.Tensor, peer: int, kind: int, tag: int
    ) -> None:
        self._send(moving, gather_rows(source, index, self._empty(index.numel())), peer, kind, tag)

    def _send(self, moving: Scatter | Gather, rows: torch.Tensor, peer: int, kind: int, tag: int) -> None:
        if rows.shape[0]:
            moving.kept.append(rows)
            moving.wire.send(Message(rows, peer, kind, tag))

    def _sources_on_rail_of(self, peer: int) -> list[int]:
        """Remote sources that cross to this domain through `peer`."""
        return [d * self.domains.size + peer % self.domains.size for d in self.domains.remote]

    def _chunk_tag(self, source: int, c: int) -> int:
        """Forwarded rows of several sources share a pair of ranks: tell them apart by domain and chunk."""
        return c * self.domains.count + source // self.domains.size

    def _rail_peer(self, domain: int) -> int:
        return domain * self.domains.size + self.domains.local

    def _empty(self, rows: int) -> torch.Tensor:
        return self.pool.empty((rows, self.hidden), self.dtype)


def _partial_span(plan: LocalPlan, s: int, c: int, local: int) -> tuple[int, int]:
    """Where local rank's partial rows for chunk c of rail source s lie in the buffer they meet in."""
    now, after = plan.cum_rank[s][c], plan.cum_rank[s][c + 1]
    low = sum(now) + sum(after[:local]) - sum(now[:local])
    return low, low + after[local] - now[local]
