"""Who sends which row where in the two-stage exchange, derived on every rank from all ranks' expert ids.

Terms: source s = (domain, local). A token crosses to each domain that holds one of its experts once, along the source's
rail, and from there to each rank once. `wire` rows cross domains, `direct` rows go from a source to ranks of its own
domain, `forward` rows leave the rail's rank for the other ranks of the domain. Chunks cut every source's tokens into
equal ranges.

The part that the slow link waits for is built first; the rest is built while the link is busy.

Legend: W ranks, M max tokens, K top-k, D domains, L ranks of a domain, e local experts, C chunks, N = W * M flat
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch

from moe_dispatch.dispatch.domains import Domains
from moe_dispatch.dispatch.order import inverse_order
from moe_dispatch.dispatch.pairs import PairRoute, local_pairs, pair_route
from moe_dispatch.dispatch.rows import offsets_from_counts


@dataclass(frozen=True)
class Bags:
    """Rows to add up: `index` into a row buffer, `offsets` one longer than the bags. Both int64 on the payload's
    device.
    """

    index: torch.Tensor
    offsets: torch.Tensor


@dataclass(frozen=True)
class WirePlan:
    """What crosses between domains.

    Fields:
        tokens[d]: my tokens that cross to domain d.
        out[c][d]: how many of them lie before chunk c.
        into[s][c]: tokens of rail source s, before chunk c, that need my domain.
        hits_MD: which domains each of my tokens needs.
        rail_hits[s]: [M] bool, which tokens of rail source s need my domain.
    """

    tokens: dict[int, torch.Tensor]
    out: list[list[int]]
    into: dict[int, list[int]]
    hits_MD: torch.Tensor
    rail_hits: dict[int, torch.Tensor]


@dataclass(frozen=True)
class LocalPlan:
    """What happens inside my domain.

    Fields:
        cum_rank[s][c][p]: tokens of source s, before chunk c, that need local rank p of my domain.
        direct_tokens[p]: my tokens for local rank p of my domain.
        forward_index[s][p]: for rail source s, rows of its wire list that local rank p needs.
        landing_rows[s]: rows of source s that land here: its wire list on my rail, all tokens of my own, else what this
            rank needs of it.
        expand_index_R: for each received row, its row among those of its source; for my own source, the token itself.
        source_R: source of each received row.
        segment_start[x][s * C + c]: first received row of local expert x, source s, chunk c.
        sum_pairs: received rows of each (source, token) that is mine, natural order; bags count along cum_rank of my
            rank.
        domain_sums[s]: for rail source s, partial rows of the domain's ranks for each wire token, chunk by chunk.
        final_sums: for my tokens, own-domain partials (L sections) then remote domains (D - 1 sections, in `remote`
            order).
        section_base: first row of each final section (one longer than the sections).
        pairs: the way of the routing weights.
    """

    tokens_per_expert_e: torch.Tensor
    cum_rank: list[list[list[int]]]
    direct_tokens: list[torch.Tensor]
    forward_index: dict[int, list[torch.Tensor]]
    landing_rows: list[int]
    expand_index_R: torch.Tensor
    source_R: torch.Tensor
    segment_start: list[list[int]]
    sum_pairs: Bags
    domain_sums: dict[int, Bags]
    final_sums: Bags
    section_base: list[int]
    pairs: PairRoute


class HierarchicalPlan:
    """Plan of one exchange for `rank`; no communication.

    Args:
        ids_WMK: all ranks' expert ids, -1 where there is no pair.
        tokens_W: token count of each rank.
        num_experts: E.
        domains: the group's domains, seen from `rank`.
        rank: this rank of the group.
        chunks: C.
    """

    def __init__(
        self, ids_WMK: torch.Tensor, tokens_W: list[int], num_experts: int, domains: Domains, rank: int, chunks: int
    ) -> None:
        self.ids_WMK, self.tokens_W, self.domains, self.rank, self.chunks = ids_WMK, tokens_W, domains, rank, chunks
        self.local_experts = num_experts // ids_WMK.shape[0]
        self.num_tokens = tokens_W[rank]
        self.bounds_WC = [[c * t // chunks for c in range(chunks + 1)] for t in tokens_W]
        self.wire = self._build_wire()

    @property
    def token_bounds(self) -> list[int]:
        """First of my tokens in each chunk, and the end."""
        return self.bounds_WC[self.rank]

    @property
    def tokens_per_expert_e(self) -> torch.Tensor:
        """int64 on the CPU."""
        return self.local.tokens_per_expert_e

    @cached_property
    def local(self) -> LocalPlan:
        """Built at first use."""
        return self._build_local()

    def _owners(self, ids: torch.Tensor, per: int) -> torch.Tensor:
        return torch.div(ids, per, rounding_mode="floor").to(torch.int64)

    def _build_wire(self) -> WirePlan:
        domains = self.domains
        per_domain = self.local_experts * domains.size
        hits_MD = _hits(self._owners(self.ids_WMK[self.rank], per_domain), domains.count)
        rails = rail_sources(domains)
        rail_hits = {s: (self._owners(self.ids_WMK[s], per_domain) == domains.index).any(1) for s in rails}
        columns = [(hits_MD[:, d], self.rank) for d in range(domains.count)] + [(rail_hits[s], s) for s in rails]
        counts = _prefix_at(torch.stack([column for column, _ in columns]), [self.bounds_WC[s] for _, s in columns])
        return WirePlan(
            tokens={d: hits_MD[:, d].nonzero().view(-1) for d in domains.remote},
            out=[list(row) for row in zip(*counts[: domains.count], strict=True)],
            into=dict(zip(rails, counts[domains.count :], strict=True)),
            hits_MD=hits_MD,
            rail_hits=rail_hits,
        )

    def _build_local(self) -> LocalPlan:
        domains, rank, chunks, wire = self.domains, self.rank, self.chunks, self.wire
        world, most, topk = self.ids_WMK.shape
        size, rails = domains.size, rail_sources(domains)
        owner_WMK = self._owners(self.ids_WMK, self.local_experts)
        mask_WML = _hits(owner_WMK.view(-1, topk) - domains.index * size, size).view(world, most, size)
        served = local_pairs(self.ids_WMK, rank, self.local_experts)
        pairs_N = torch.bincount(served.token_nat_R, minlength=world * most)
        columns = mask_WML.permute(0, 2, 1).reshape(world * size, most)
        counts = _prefix_at(columns, [bounds for bounds in self.bounds_WC for _ in range(size)])
        cum_rank = [[list(row) for row in zip(*counts[s * size : (s + 1) * size], strict=True)] for s in range(world)]

        lands_WM = mask_WML[:, :, domains.local].clone()
        for s in rails:
            lands_WM[s] = wire.rail_hits[s]
        lands_WM[rank] = True
        landing_N = (torch.cumsum(lands_WM, 1) - 1).view(-1)
        landing_rows = [wire.into[s][-1] if s in wire.into else cum_rank[s][-1][domains.local] for s in range(world)]
        landing_rows[rank] = self.num_tokens

        width = world * chunks
        segment_N = _segments(self.bounds_WC, most, chunks, self.ids_WMK.device)
        segment_R = served.expert_nat_R * width + segment_N[served.token_nat_R]
        per_segment = torch.bincount(segment_R, minlength=self.local_experts * width)
        starts = offsets_from_counts(per_segment).tolist()
        pairs_from = pairs_N.view(world, most).sum(1).tolist()

        compact = {s: mask_WML[s][wire.rail_hits[s]] for s in rails}
        own_ML = mask_WML[rank]
        final_mask = torch.cat([own_ML, wire.hits_MD[:, domains.remote]], 1)[: self.num_tokens]
        section_rows = cum_rank[rank][-1] + [wire.out[-1][d] for d in domains.remote]
        return LocalPlan(
            tokens_per_expert_e=torch.tensor(starts[::width]).diff(),
            cum_rank=cum_rank,
            direct_tokens=[own_ML[:, p].nonzero().view(-1) for p in range(size)],
            forward_index={s: [compact[s][:, p].nonzero().view(-1) for p in range(size)] for s in rails},
            landing_rows=landing_rows,
            expand_index_R=landing_N[served.token_R],
            source_R=torch.div(served.token_R, most, rounding_mode="floor"),
            segment_start=[starts[x * width : (x + 1) * width + 1] for x in range(self.local_experts)],
            sum_pairs=Bags(inverse_order(served.order_R), offsets_from_counts(pairs_N[pairs_N > 0])),
            domain_sums={s: _chunked_bags(compact[s], wire.into[s], cum_rank[s]) for s in rails},
            final_sums=_sectioned_bags(final_mask, _bases(section_rows)),
            section_base=_bases(section_rows),
            pairs=pair_route(owner_WMK[rank], self.num_tokens, world, rank, pairs_from, served.order_R),
        )


def rail_sources(domains: Domains) -> list[int]:
    """Remote sources whose rows this rank receives over the wire and forwards: same local place, other domains."""
    return [d * domains.size + domains.local for d in domains.remote]


def _bases(rows: list[int]) -> list[int]:
    """[0, r0, r0 + r1, ...]."""
    bases = [0]
    for count in rows:
        bases.append(bases[-1] + count)
    return bases


def _hits(place_NK: torch.Tensor, size: int) -> torch.Tensor:
    """[N, size] bool: does any of a token's K places equal column i; places outside [0, size) hit nothing."""
    inside = (place_NK >= 0) & (place_NK < size)
    hits = torch.zeros(place_NK.shape[0], size + 1, dtype=torch.bool, device=place_NK.device)
    hits.scatter_(1, torch.where(inside, place_NK, size), True)
    return hits[:, :size]


def _prefix_at(flags_QM: torch.Tensor, bounds_QC: list[list[int]]) -> list[list[int]]:
    """How many flags of row q are set before each of its bounds; one read-back to the host."""
    total = torch.zeros(flags_QM.shape[0], flags_QM.shape[1] + 1, dtype=torch.int64, device=flags_QM.device)
    torch.cumsum(flags_QM, 1, out=total[:, 1:])
    counts: list[list[int]] = total.gather(1, torch.tensor(bounds_QC, device=total.device)).tolist()
    return counts


def _segments(bounds_WC: list[list[int]], most: int, chunks: int, device: torch.device) -> torch.Tensor:
    """[N] number s * C + c of the (source, chunk) that a flat token belongs to; padding counts to the last chunk."""
    world = len(bounds_WC)
    if chunks == 1:
        return torch.arange(world, device=device).repeat_interleave(most)
    segment = torch.empty(world, most, dtype=torch.int64, device=device)
    for source, bounds in enumerate(bounds_WC):
        for c in range(chunks):
            segment[source, bounds[c] : bounds[c + 1] if c + 1 < chunks else most] = source * chunks + c
    return segment.view(-1)


def _chunked_bags(mask_BL: torch.Tensor, bag_bounds_C: list[int], cum_CL: list[list[int]]) -> Bags:
    """Bags over a buffer laid out chunk by chunk, inside a chunk rank by rank."""
    size = mask_BL.shape[1]
    base_CL = []
    for c in range(len(cum_CL) - 1):
        start = sum(cum_CL[c])
        base_CL.append([start + sum(cum_CL[c + 1][:p]) - sum(cum_CL[c][:p]) - cum_CL[c][p] for p in range(size)])
    lengths = torch.tensor([b - a for a, b in pairwise(bag_bounds_C)], device=mask_BL.device)
    base_BL = torch.tensor(base_CL, device=mask_BL.device).repeat_interleave(lengths, 0)
    position = base_BL + torch.cumsum(mask_BL, 0) - 1
    return Bags(position[mask_BL], offsets_from_counts(mask_BL.sum(1)))


def _sectioned_bags(mask_BQ: torch.Tensor, section_base: list[int]) -> Bags:
    """Bags over a buffer laid out section by section, one section a column of the mask."""
    base_Q = torch.tensor(section_base[:-1], device=mask_BQ.device)
    position = base_Q + torch.cumsum(mask_BQ, 0) - 1
    return Bags(position[mask_BQ], offsets_from_counts(mask_BQ.sum(1)))
