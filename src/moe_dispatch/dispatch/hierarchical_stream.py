"""The two-stage exchange as a stream of messages, for gloo: chunks cross the wire while rows of the own node are expanded.

Order of work in `scatter`: post every receive; send wire chunks, then rows for the own domain; expand own rows, then the
domain's; for each wire chunk that arrives, forward it, then expand it. `gather` is the mirror image. What decides the speed
is measured in docs/two_nodes.md.
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

_DIRECT, _WIRE, _FORWARD = 2, 3, 4


@dataclass
class Scatter:
    """A scatter under way."""

    plan: HierarchicalPlan
    wire: Wire
    landing: torch.Tensor
    rows: torch.Tensor
    direct: dict[int, Arrival]
    crossing: dict[tuple[int, int], Arrival]
    forwarded: dict[tuple[int, int], Arrival]
    probs: pairs.PairBuffers | None
    probs_waits: list[Arrival]
    kept: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Gather:
    """A gather under way."""

    plan: HierarchicalPlan
    wire: Wire
    sections: torch.Tensor
    direct: list[Arrival]
    crossing: dict[tuple[int, int], Arrival]
    probs: pairs.PairBuffers | None
    probs_waits: list[Arrival]
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

    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: HierarchicalPlan) -> Scatter:
        """Post receives, send what this rank owns, expand its own rows."""
        wire = Wire(self.group)
        landing = self._empty(plan.landing_base[-1])
        rows = self._empty(plan.expand_index_R.numel())
        moving = Scatter(plan, wire, landing, rows, {}, {}, {}, None, [])
        self._post_scatter_receives(moving)
        if probs_TK is not None:
            moving.probs = pairs.scatter_buffers(probs_TK, plan.pairs)
            moving.probs_waits = [wire.receive(message) for message in moving.probs.receives]
        for c in range(plan.chunks):
            for d in self.domains.remote:
                tokens = plan.wire_tokens[d][plan.cum_out[c][d] : plan.cum_out[c + 1][d]]
                self._send_rows(moving, x_TH, tokens, self._rail_peer(d), _WIRE, c)
        for p in self.domains.peers:
            self._send_rows(moving, x_TH, plan.direct_tokens[p % self.domains.size], p, _DIRECT, 0)
        if moving.probs is not None:
            for message in moving.probs.sends:
                wire.send(message)
        self._expand(moving, x_TH, plan.own_index_R, self.rank, 0, plan.chunks)
        return moving

    def scatter_finish(self, moving: Scatter) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Expand what arrives, forwarding wire chunks on the way."""
        plan = moving.plan
        for p in self.domains.peers:
            if p in moving.direct:
                moving.direct[p].wait()
                self._expand(moving, moving.landing, plan.expand_index_R, p, 0, plan.chunks)
        for c in range(plan.chunks):
            for s in self.rails:
                if (s, c) in moving.crossing:
                    moving.crossing[s, c].wait()
                    self._forward(moving, s, c)
                    self._expand(moving, moving.landing, plan.expand_index_R, s, c, c + 1)
            for (s, chunk), arrival in moving.forwarded.items():
                if chunk == c:
                    arrival.wait()
                    self._expand(moving, moving.landing, plan.expand_index_R, s, c, c + 1)
        for arrival in moving.probs_waits:
            arrival.wait()
        moving.wire.drain()
        return moving.rows, None if moving.probs is None else pairs.received_probs(moving.probs, plan.pairs)

    def gather_start(
        self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: HierarchicalPlan
    ) -> Gather:
        """Add up this rank's rows, meet the domain's partial sums, and send whole sums across, chunk by chunk."""
        y_RH = y_RH.contiguous()
        wire = Wire(self.group)
        moving = Gather(plan, wire, self._empty(plan.section_base[-1]), [], {}, None, [])
        buffers, partials = self._post_gather_receives(moving)
        if probs_grad_R is not None:
            moving.probs = pairs.gather_buffers(probs_grad_R.contiguous(), plan.pairs)
            moving.probs_waits = [wire.receive(message) for message in moving.probs.receives]
        for c in range(plan.chunks):
            self._send_partials(moving, y_RH, c)
            for s in self.rails:
                self._send_domain_sum(moving, y_RH, s, c, buffers.get(s), partials)
        for p in self.domains.peers:
            self._send(moving, self._partial(y_RH, plan, p, 0, plan.chunks), p, _DIRECT, 0)
        if moving.probs is not None:
            for message in moving.probs.sends:
                wire.send(message)
        own = self.domains.local
        moving.sections[plan.section_base[own] : plan.section_base[own + 1]] = self._partial(
            y_RH, plan, self.rank, 0, plan.chunks
        )
        return moving

    def gather_finish(self, moving: Gather) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Final sums, chunk by chunk as remote sums arrive."""
        plan = moving.plan
        for arrival in moving.direct:
            arrival.wait()
        sums = plan.final_sums
        stages = plan.chunks if self.domains.count > 1 else 1
        out = self._empty(plan.num_tokens) if stages > 1 else None
        for c in range(stages):
            for (_, chunk), arrival in moving.crossing.items():
                if chunk == c:
                    arrival.wait()
            last = plan.chunks if stages == 1 else c + 1
            t0, t1 = plan.token_bounds[c], plan.token_bounds[last]
            i0, i1 = self._final_terms(plan, c), self._final_terms(plan, last)
            part = sum_rows(moving.sections, sums.index[i0:i1], sums.offsets[t0 : t1 + 1] - i0)
            if out is None:
                out = part
            else:
                out[t0:t1] = part
        assert out is not None
        for arrival in moving.probs_waits:
            arrival.wait()
        moving.wire.drain()
        return out, None if moving.probs is None else pairs.returned_grad(moving.probs, plan.pairs)

    def _post_scatter_receives(self, moving: Scatter) -> None:
        plan, base = moving.plan, moving.plan.landing_base
        local = self.domains.local
        for c in range(plan.chunks):
            for s in self.rails:
                low, high = plan.cum_domain[s][c], plan.cum_domain[s][c + 1]
                self._receive(moving.wire, moving.landing[base[s] + low : base[s] + high], s, _WIRE, c, moving.crossing, s)
        for p in self.domains.peers:
            if base[p + 1] > base[p]:
                moving.direct[p] = moving.wire.receive(Message(moving.landing[base[p] : base[p + 1]], p, _DIRECT))
        for c in range(plan.chunks):
            for p in self.domains.peers:
                for d in self.domains.remote:
                    s = d * self.domains.size + p % self.domains.size
                    low, high = plan.cum_rank[s][c][local], plan.cum_rank[s][c + 1][local]
                    rows = moving.landing[base[s] + low : base[s] + high]
                    self._receive(moving.wire, rows, p, _FORWARD, c, moving.forwarded, s)

    def _post_gather_receives(self, moving: Gather) -> tuple[dict[int, torch.Tensor], dict[tuple[int, int], list[Arrival]]]:
        """Returns, for every rail source, the buffer its partial sums meet in, and the arrivals of each chunk."""
        plan, size = moving.plan, self.domains.size
        buffers: dict[int, torch.Tensor] = {}
        partials: dict[tuple[int, int], list[Arrival]] = {}
        if size > 1:
            buffers = {s: self._empty(sum(plan.cum_rank[s][-1])) for s in self.rails}
        for c in range(plan.chunks):
            for s in self.rails:
                partials[s, c] = []
                for p in self.domains.peers:
                    low, high = _partial_span(plan, s, c, p % size)
                    if high > low:
                        message = Message(buffers[s][low:high], p, _FORWARD, self._chunk_tag(s, c))
                        partials[s, c].append(moving.wire.receive(message))
        for p in self.domains.peers:
            low, high = plan.section_base[p % size], plan.section_base[p % size + 1]
            if high > low:
                moving.direct.append(moving.wire.receive(Message(moving.sections[low:high], p, _DIRECT)))
        for c in range(plan.chunks):
            for i, d in enumerate(self.domains.remote):
                first = plan.section_base[size + i]
                rows = moving.sections[first + plan.cum_out[c][d] : first + plan.cum_out[c + 1][d]]
                self._receive(moving.wire, rows, self._rail_peer(d), _WIRE, c, moving.crossing, d)
        return buffers, partials

    def _receive(
        self, wire: Wire, rows: torch.Tensor, peer: int, kind: int, c: int, table: dict[tuple[int, int], Arrival], key: int
    ) -> None:
        if rows.shape[0]:
            tag = self._chunk_tag(key, c) if kind == _FORWARD else c
            table[key, c] = wire.receive(Message(rows, peer, kind, tag))

    def _chunk_tag(self, source: int, c: int) -> int:
        """Forwarded rows of several sources share a pair of ranks: tell them apart by domain and chunk."""
        return c * self.domains.count + source // self.domains.size

    def _send_rows(
        self, moving: Scatter | Gather, source: torch.Tensor, index: torch.Tensor, peer: int, kind: int, tag: int
    ) -> None:
        if index.numel():
            rows = gather_rows(source, index, self._empty(index.numel()))
            self._send(moving, rows, peer, kind, tag)

    def _send(self, moving: Scatter | Gather, rows: torch.Tensor, peer: int, kind: int, tag: int) -> None:
        if rows.shape[0]:
            moving.kept.append(rows)
            moving.wire.send(Message(rows, peer, kind, tag))

    def _forward(self, moving: Scatter, s: int, c: int) -> None:
        plan, base = moving.plan, moving.plan.landing_base
        arrived = moving.landing[base[s] : base[s + 1]]
        for p in self.domains.peers:
            local = p % self.domains.size
            low, high = plan.cum_rank[s][c][local], plan.cum_rank[s][c + 1][local]
            self._send_rows(moving, arrived, plan.forward_index[s][local][low:high], p, _FORWARD, self._chunk_tag(s, c))

    def _expand(self, moving: Scatter, source: torch.Tensor, index_R: torch.Tensor, s: int, c0: int, c1: int) -> None:
        """Copy rows of source s, chunks [c0, c1), to their place under every local expert."""
        first, last = s * moving.plan.chunks + c0, s * moving.plan.chunks + c1
        for starts in moving.plan.segment_start:
            low, high = starts[first], starts[last]
            if high > low:
                gather_rows(source, index_R[low:high], moving.rows[low:high])

    def _partial(self, y_RH: torch.Tensor, plan: HierarchicalPlan, s: int, c0: int, c1: int) -> torch.Tensor:
        """This rank's sum for each token of source s, chunks [c0, c1), that it holds experts of."""
        local = self.domains.local
        bag = sum(plan.cum_rank[q][-1][local] for q in range(s))
        term = sum(plan.cum_pairs[q][-1] for q in range(s))
        b0, b1 = bag + plan.cum_rank[s][c0][local], bag + plan.cum_rank[s][c1][local]
        i0, i1 = term + plan.cum_pairs[s][c0], term + plan.cum_pairs[s][c1]
        return sum_rows(y_RH, plan.sum_pairs.index[i0:i1], plan.sum_pairs.offsets[b0 : b1 + 1] - i0)

    def _send_partials(self, moving: Gather, y_RH: torch.Tensor, c: int) -> None:
        """Chunk c of every other rail's sources, to the rank of this domain on that rail."""
        for p in self.domains.peers:
            for d in self.domains.remote:
                s = d * self.domains.size + p % self.domains.size
                self._send(moving, self._partial(y_RH, moving.plan, s, c, c + 1), p, _FORWARD, self._chunk_tag(s, c))

    def _send_domain_sum(
        self,
        moving: Gather,
        y_RH: torch.Tensor,
        s: int,
        c: int,
        buffer: torch.Tensor | None,
        partials: dict[tuple[int, int], list[Arrival]],
    ) -> None:
        """Add the domain's partial sums for chunk c of rail source s and send the result across."""
        plan = moving.plan
        total = self._partial(y_RH, plan, s, c, c + 1)
        if buffer is not None:
            low, high = _partial_span(plan, s, c, self.domains.local)
            buffer[low:high] = total
            for arrival in partials[s, c]:
                arrival.wait()
            bags = plan.domain_sums[s]
            i0, i1 = sum(plan.cum_rank[s][c]), sum(plan.cum_rank[s][c + 1])
            b0, b1 = plan.cum_domain[s][c], plan.cum_domain[s][c + 1]
            total = sum_rows(buffer, bags.index[i0:i1], bags.offsets[b0 : b1 + 1] - i0)
        self._send(moving, total, s, _WIRE, c)

    def _final_terms(self, plan: HierarchicalPlan, c: int) -> int:
        """Rows that the final sums of my tokens before chunk c add up."""
        return sum(plan.cum_rank[self.rank][c]) + sum(plan.cum_out[c][d] for d in self.domains.remote)

    def _rail_peer(self, domain: int) -> int:
        return domain * self.domains.size + self.domains.local

    def _empty(self, rows: int) -> torch.Tensor:
        return self.pool.empty((rows, self.hidden), self.dtype)


def _partial_span(plan: HierarchicalPlan, s: int, c: int, local: int) -> tuple[int, int]:
    """Where local rank's partial rows for chunk c of rail source s lie in the buffer they meet in."""
    now, after = plan.cum_rank[s][c], plan.cum_rank[s][c + 1]
    low = sum(now) + sum(after[:local]) - sum(now[:local])
    return low, low + after[local] - now[local]
