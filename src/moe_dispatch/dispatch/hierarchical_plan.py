"""Who sends which row where in the two-stage exchange, derived on every rank from all ranks' expert ids.

Terms: source s = (domain, local). A token crosses to each domain that holds one of its experts once, along the source's
rail, and from there to each rank once. `wire` rows cross domains, `direct` rows go from a source to ranks of its own domain,
`forward` rows leave the rail's rank for the other ranks of the domain. Chunks cut every source's tokens into equal ranges.

Legend: W ranks, M max tokens, K top-k, D domains, L ranks of a domain, e local experts, C chunks, N = W * M flat tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moe_dispatch.dispatch.domains import Domains
from moe_dispatch.dispatch.order import inverse_order
from moe_dispatch.dispatch.pairs import PairRoute, local_pairs, pair_route
from moe_dispatch.dispatch.rows import offsets_from_counts


@dataclass(frozen=True)
class Bags:
    """Rows to add up: `index` into a row buffer, `offsets` one longer than the bags. Both int64 on the payload's device."""

    index: torch.Tensor
    offsets: torch.Tensor


@dataclass(frozen=True)
class HierarchicalPlan:
    """Everything one exchange needs. Host-side counts are lists, index tensors live on the payload's device.

    Fields:
        cum_rank[s][c][p]: tokens of source s, before chunk c, that need local rank p of my domain.
        cum_domain[s][c]: the same for "needs my domain at all".
        cum_pairs[s][c]: (token, local expert) pairs of source s that are mine, before chunk c.
        cum_out[c][d]: tokens of mine, before chunk c, that need domain d.
        token_bounds[c]: first of my tokens in chunk c.
        wire_tokens[d]: my tokens that cross to domain d.
        direct_tokens[p]: my tokens for local rank p of my domain.
        forward_index[s][p]: for rail source s, rows of its wire list that local rank p needs.
        landing_base[s]: first row of source s in the landing buffer (one longer than W).
        expand_index_R: landing row of each received row, in expert order.
        own_index_R: for rows from this rank itself, the token (row of x) of each received row; undefined elsewhere.
        segment_start[x][s * C + c]: first received row of local expert x, source s, chunk c.
        sum_pairs: received rows of each (source, token) that is mine, natural order; bags count along cum_rank of my rank.
        domain_sums[s]: for rail source s, partial rows of the domain's ranks for each wire token, chunk by chunk.
        final_sums: for my tokens, own-domain partials (L sections) then remote domains (D - 1 sections, in `remote` order).
        section_base: first row of each final section (one longer than the sections).
        pairs: the way of the routing weights.
    """

    chunks: int
    num_tokens: int
    tokens_per_expert_e: torch.Tensor
    cum_rank: list[list[list[int]]]
    cum_domain: list[list[int]]
    cum_pairs: list[list[int]]
    cum_out: list[list[int]]
    token_bounds: list[int]
    wire_tokens: dict[int, torch.Tensor]
    direct_tokens: list[torch.Tensor]
    forward_index: dict[int, list[torch.Tensor]]
    landing_base: list[int]
    expand_index_R: torch.Tensor
    own_index_R: torch.Tensor
    segment_start: list[list[int]]
    sum_pairs: Bags
    domain_sums: dict[int, Bags]
    final_sums: Bags
    section_base: list[int]
    pairs: PairRoute


def rail_sources(domains: Domains) -> list[int]:
    """Remote sources whose rows this rank receives over the wire and forwards: same local place, other domains."""
    return [d * domains.size + domains.local for d in domains.remote]


def build_plan(
    ids_WMK: torch.Tensor, tokens_W: list[int], num_experts: int, domains: Domains, rank: int, chunks: int
) -> HierarchicalPlan:
    """Derive the plan of `rank`; no communication. `ids_WMK` holds -1 where there is no pair.

    On CUDA the host reads counts back once.
    """
    world, most, topk = ids_WMK.shape
    device = ids_WMK.device
    local_experts = num_experts // world
    size, first_rank = domains.size, domains.index * domains.size
    owner_WMK = torch.div(ids_WMK, local_experts, rounding_mode="floor").to(torch.int64)
    mask_NL = _hits(owner_WMK.view(-1, topk) - first_rank, size)
    domain_N = mask_NL.any(1)
    mine_NK = (owner_WMK == rank).view(-1, topk)
    pairs_N = mine_NK.sum(1)
    own_TD = _hits(torch.div(owner_WMK[rank], size, rounding_mode="floor"), domains.count)

    bounds_WC = [[c * t // chunks for c in range(chunks + 1)] for t in tokens_W]
    counted_N = torch.cat([mask_NL, domain_N[:, None], pairs_N[:, None]], 1)
    cum_WCQ, cum_out = _counts_at_bounds(counted_N, own_TD, bounds_WC, most, rank)
    cum_rank = [[row[:size] for row in source] for source in cum_WCQ]
    cum_domain = [[row[size] for row in source] for source in cum_WCQ]
    cum_pairs = [[row[size + 1] for row in source] for source in cum_WCQ]

    mask_WML, domain_WM = mask_NL.view(world, most, size), domain_N.view(world, most)
    rails = rail_sources(domains)
    lands_WM = mask_WML[:, :, domains.local].clone()
    lands_WM[rails] = domain_WM[rails]
    landing_rows = [(cum_domain if s in rails else [[r[domains.local] for r in cum] for cum in cum_rank])[s][-1] for s in range(world)]
    landing_N = torch.cumsum(lands_WM.view(-1), 0) - 1

    served = local_pairs(ids_WMK, rank, local_experts)
    segment_N = _segments(bounds_WC, most, chunks, device)
    per_segment = torch.bincount(
        served.expert_nat_R * (world * chunks) + segment_N[served.token_nat_R], minlength=local_experts * world * chunks
    ).view(local_experts, -1)
    segment_start = offsets_from_counts(per_segment.view(-1)).tolist()
    width = world * chunks

    compact = {s: mask_WML[s][domain_WM[s]] for s in rails}
    own_mask_ML = mask_WML[rank]
    final_mask = torch.cat([own_mask_ML, own_TD[:, domains.remote]], 1)[: tokens_W[rank]]
    section_rows = [cum_rank[rank][-1][p] for p in range(size)] + [cum_out[-1][d] for d in domains.remote]
    section_base = [0]
    for rows in section_rows:
        section_base.append(section_base[-1] + rows)
    return HierarchicalPlan(
        chunks=chunks,
        num_tokens=tokens_W[rank],
        tokens_per_expert_e=per_segment.sum(1).cpu(),
        cum_rank=cum_rank,
        cum_domain=cum_domain,
        cum_pairs=cum_pairs,
        cum_out=cum_out,
        token_bounds=bounds_WC[rank],
        wire_tokens={d: own_TD[:, d].nonzero().view(-1) for d in domains.remote},
        direct_tokens=[own_mask_ML[:, p].nonzero().view(-1) for p in range(size)],
        forward_index={s: [compact[s][:, p].nonzero().view(-1) for p in range(size)] for s in rails},
        landing_base=[sum(landing_rows[:s]) for s in range(world + 1)],
        expand_index_R=landing_N[served.token_R],
        own_index_R=served.token_R - rank * most,
        segment_start=[segment_start[x * width : (x + 1) * width + 1] for x in range(local_experts)],
        sum_pairs=Bags(inverse_order(served.order_R), offsets_from_counts(pairs_N[pairs_N > 0])),
        domain_sums={s: _chunked_bags(compact[s], cum_domain[s], cum_rank[s]) for s in rails},
        final_sums=_sectioned_bags(final_mask, section_base),
        section_base=section_base,
        pairs=pair_route(
            owner_WMK[rank], tokens_W[rank], world, rank, [cum[-1] for cum in cum_pairs], served.order_R
        ),
    )


def _hits(place_NK: torch.Tensor, size: int) -> torch.Tensor:
    """[N, size] bool: does any of a token's K places equal column i; places outside [0, size) hit nothing."""
    inside = (place_NK >= 0) & (place_NK < size)
    hits = torch.zeros(place_NK.shape[0], size + 1, dtype=torch.bool, device=place_NK.device)
    hits.scatter_(1, torch.where(inside, place_NK, size), True)
    return hits[:, :size]


def _counts_at_bounds(
    counted_NQ: torch.Tensor, own_TD: torch.Tensor, bounds_WC: list[list[int]], most: int, rank: int
) -> tuple[list[list[list[int]]], list[list[int]]]:
    """Prefix sums at chunk bounds, relative to each source's first token; one read-back for all of them."""
    world, columns = len(bounds_WC), counted_NQ.shape[1]
    total = torch.zeros(counted_NQ.shape[0] + 1, columns, dtype=torch.int64, device=counted_NQ.device)
    torch.cumsum(counted_NQ, 0, out=total[1:])
    out = torch.zeros(own_TD.shape[0] + 1, own_TD.shape[1], dtype=torch.int64, device=own_TD.device)
    torch.cumsum(own_TD, 0, out=out[1:])
    at = torch.tensor(bounds_WC, device=counted_NQ.device)
    starts = torch.arange(world, device=at.device)[:, None] * most
    picked = total[(at + starts).view(-1)].view(world, -1, columns)
    flat = torch.cat([(picked - picked[:, :1]).view(-1), out[at[rank]].view(-1)]).tolist()
    points = at.shape[1]
    cut = world * points * columns
    rows = [flat[i : i + columns] for i in range(0, cut, columns)]
    out_rows = [flat[i : i + own_TD.shape[1]] for i in range(cut, len(flat), own_TD.shape[1])]
    return [rows[s * points : (s + 1) * points] for s in range(world)], out_rows


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
    lengths = torch.tensor([b - a for a, b in zip(bag_bounds_C, bag_bounds_C[1:], strict=False)], device=mask_BL.device)
    base_BL = torch.tensor(base_CL, device=mask_BL.device).repeat_interleave(lengths, 0)
    position = base_BL + torch.cumsum(mask_BL, 0) - 1
    return Bags(position[mask_BL], offsets_from_counts(mask_BL.sum(1)))


def _sectioned_bags(mask_BQ: torch.Tensor, section_base: list[int]) -> Bags:
    """Bags over a buffer laid out section by section, one section a column of the mask."""
    base_Q = torch.tensor(section_base[:-1], device=mask_BQ.device)
    position = base_Q + torch.cumsum(mask_BQ, 0) - 1
    return Bags(position[mask_BQ], offsets_from_counts(mask_BQ.sum(1)))
