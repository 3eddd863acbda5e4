"""How many rows a dispatch moves: exact counts of a given routing, and expectations before anything runs.

Three ways to count the same routing, for E experts on R ranks in domains of L ranks: `rows_copies` is one row for
each (token, expert); `rows_rank` one for each (token, rank that owns a chosen expert); `rows_domain` one for each
(token, domain of such a rank). `_off_rank` leaves out rows that stay on their source rank, `_off_domain` those that
stay in its domain.
Formulas and their check against Monte Carlo are in docs/traffic.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.routing import GroupScore, RoutingSpec, generate, log_expert_weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MONTE_CARLO_TOKENS = 16384
"""Sampled tokens where no closed form holds; the standard error of a distinct count below 8 is then under 0.01."""


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Exact row counts, one direction, summed over all source ranks (fields as in the stored traffic record)."""

    rows_copies: int
    rows_copies_off_rank: int
    rows_copies_off_domain: int
    rows_rank: int
    rows_rank_off_rank: int
    rows_rank_off_domain: int
    rows_domain: int
    rows_domain_off_domain: int


@dataclass(frozen=True, kw_only=True)
class ExpectedRows:
    """Expected row counts of one source rank (the mean over ranks), one direction.

    Fields:
        method: `closed_form`, `monte_carlo` or `replay` (a trace of choices, counted exactly).
    """

    rows_copies: float
    rows_copies_off_rank: float
    rows_copies_off_domain: float
    rows_rank: float
    rows_rank_off_rank: float
    rows_rank_off_domain: float
    rows_domain: float
    rows_domain_off_domain: float
    method: str


def count_rows(ids_by_rank: Sequence[NDArray[np.integer]], num_experts: int, ranks_per_domain: int) -> RowCounts:
    """Count rows exactly.

    Args:
        ids_by_rank: for each source rank the chosen expert ids, integer [T, K]; T may differ; -1 is ignored.
        num_experts: E; rank r owns experts [r*E/R, (r+1)*E/R).
        ranks_per_domain: L, a divisor of R = len(ids_by_rank).

    Raises:
        WorkloadError: sizes that do not divide, or an id of E or more.
    """
    import numpy as np

    ranks = len(ids_by_rank)
    _check_sizes(num_experts, ranks, ranks_per_domain)
    domains = ranks // ranks_per_domain
    totals = np.zeros(8, dtype=np.int64)
    for source, given in enumerate(ids_by_rank):
        ids = np.asarray(given)
        if ids.size and (ids.max() >= num_experts or ids.min() < -1):
            raise WorkloadError(
                f"rank {source}: expert ids run from {ids.min()} to {ids.max()}, allowed are -1..{num_experts - 1}"
            )
        token, slot = np.nonzero(ids >= 0)
        owner = ids[token, slot].astype(np.int64) // (num_experts // ranks)
        hit = np.zeros((len(ids), ranks), dtype=bool)
        hit[token, owner] = True
        hit_domain = np.zeros((len(ids), domains), dtype=bool)
        hit_domain[token, owner // ranks_per_domain] = True
        home = source // ranks_per_domain
        inside = slice(home * ranks_per_domain, (home + 1) * ranks_per_domain)
        unique, unique_domain = np.count_nonzero(hit), np.count_nonzero(hit_domain)
        totals += np.array(
            [
                owner.size,
                np.count_nonzero(owner != source),
                np.count_nonzero(owner // ranks_per_domain != home),
                unique,
                unique - np.count_nonzero(hit[:, source]),
                unique - np.count_nonzero(hit[:, inside]),
                unique_domain,
                unique_domain - np.count_nonzero(hit_domain[:, home]),
            ]
        )
    names = [field.name for field in fields(RowCounts)]
    return RowCounts(**dict(zip(names, totals.tolist(), strict=True)))


def expected_rows(
    num_experts: int,
    topk: int,
    ranks: int,
    ranks_per_domain: int,
    tokens_per_rank: int,
    *,
    routing: RoutingSpec | None = None,
    fractions: Sequence[float] | None = None,
    num_groups: int | None = None,
    group_topk: int | None = None,
    group_score: GroupScore = "top_sum",
    seed: int = 0,
) -> ExpectedRows:
    """Expected rows of one source rank when every rank routes `tokens_per_rank` tokens by the same law.

    Closed form for uniform (`force_balanced`, the default), `zipf`, recorded loads and measured `fractions` (share of
    the tokens that each expert gets, [E], sum K), which win over `routing`. Group-limited and `biased` routing have
    none (picking groups by score spreads tokens wider than a random pick): `MONTE_CARLO_TOKENS` tokens are drawn. A
    trace of choices is counted over all ranks.

    Raises:
        WorkloadError: sizes that do not divide, fractions that do not sum to K, a trace that does not fit.
    """
    import numpy as np

    _check_sizes(num_experts, ranks, ranks_per_domain)
    spec = routing or RoutingSpec(kind="force_balanced")
    domains = ranks // ranks_per_domain
    trace = spec.load_trace()
    if fractions is None and trace is not None and trace.expert_ids is not None:
        return _replayed(spec, num_experts, topk, ranks, ranks_per_domain, tokens_per_rank)
    limited = num_groups is not None and group_topk is not None and group_topk < num_groups
    if fractions is None and (limited or spec.kind == "biased"):
        groups = (num_groups, group_topk, group_score) if limited else (None, None, group_score)
        per_rank, per_domain = _sampled_distinct(spec, num_experts, topk, ranks, domains, seed, *groups)
        return _from_distinct(topk, ranks, domains, tokens_per_rank, per_rank, per_domain, "monte_carlo")
    if fractions is None and spec.kind == "force_balanced":
        per_rank = ranks * hit_probability(num_experts, topk, num_experts // ranks)
        per_domain = domains * hit_probability(num_experts, topk, num_experts // domains)
    else:
        if fractions is not None:
            shares = np.asarray(fractions, dtype=np.float64)
        else:
            shares = inclusion_fractions(log_expert_weights(spec, num_experts, topk, seed), topk)
        per_rank = float(group_hit_probabilities(shares, topk, ranks).sum())
        per_domain = float(group_hit_probabilities(shares, topk, domains).sum())
    return _from_distinct(topk, ranks, domains, tokens_per_rank, per_rank, per_domain, "closed_form")


def hit_probability(num_experts: int, topk: int, owned: int) -> float:
    """Probability that uniform top-k picks at least one of `owned` experts: 1 - C(E-m, K) / C(E, K)."""
    miss = 1.0
    for index in range(topk):
        miss *= max(num_experts - owned - index, 0) / (num_experts - index)
    return 1.0 - miss


def inclusion_fractions(log_weights: NDArray[np.float64], topk: int) -> NDArray[np.float64]:
    """Share of the tokens that each expert gets when K are drawn one after the other with the given weights.

    Exponential clocks: expert i has rung by time t with probability 1 - exp(-t w_i); t is set so that the shares sum to
    K. An approximation (error of a distinct count below 1.5 % in the cases of docs/traffic.md).
    """
    import numpy as np

    weights = np.exp(log_weights - log_weights.max())
    low, high = 0.0, 1.0
    usable = np.count_nonzero(weights)
    if usable <= topk:
        return np.asarray(weights > 0, dtype=np.float64)
    while -np.expm1(-high * weights).sum() < topk:
        high *= 2.0
        if high > 1e300:
            break
    for _ in range(200):
        middle = 0.5 * (low + high)
        if -np.expm1(-middle * weights).sum() < topk:
            low = middle
        else:
            high = middle
    return np.asarray(-np.expm1(-high * weights), dtype=np.float64)


def group_hit_probabilities(fractions: NDArray[np.float64], topk: int, parts: int) -> NDArray[np.float64]:
    """For each of `parts` equal blocks of experts, the probability that a token picks one of them.

    With w_i = f_i / (1 - f_i), q_g = 1 - e_K(w outside g) / e_K(w), e_K being the elementary symmetric polynomial: the
    K-subset law with weights w. Exact for uniform fractions.

    Raises:
        WorkloadError: fractions outside 0..1 or not summing to K.
    """
    import numpy as np

    if fractions.ndim != 1 or (fractions < 0).any() or (fractions > 1 + 1e-9).any():
        raise WorkloadError("expert fractions must be a list of numbers between 0 and 1")
    if abs(float(fractions.sum()) - topk) > 1e-3 * topk:
        raise WorkloadError(f"expert fractions sum to {fractions.sum():.4f}, they must sum to topk={topk}")
    clipped = np.minimum(fractions, 1.0 - 1e-9)
    weights = clipped / (1.0 - clipped)
    weights = weights / weights.max()
    owner = np.arange(len(weights)) * parts // len(weights)
    outside = np.where(owner[None, :] == np.arange(parts)[:, None], 0.0, weights[None, :])
    symmetric = np.zeros((parts + 1, topk + 1))
    symmetric[:, 0] = 1.0
    for column in np.vstack([outside, weights]).T:
        symmetric[:, 1:] += column[:, None] * symmetric[:, :-1]
    return np.asarray(1.0 - symmetric[:-1, topk] / symmetric[-1, topk], dtype=np.float64)


def _from_distinct(
    topk: int, ranks: int, domains: int, tokens: int, per_rank: float, per_domain: float, method: str
) -> ExpectedRows:
    """Every rank is a source with the same law, so a destination is remote with probability (R-1)/R or (D-1)/D."""
    off_rank = (ranks - 1) / ranks
    off_domain = (domains - 1) / domains
    return ExpectedRows(
        rows_copies=float(tokens * topk),
        rows_copies_off_rank=tokens * topk * off_rank,
        rows_copies_off_domain=tokens * topk * off_domain,
        rows_rank=tokens * per_rank,
        rows_rank_off_rank=tokens * per_rank * off_rank,
        rows_rank_off_domain=tokens * per_rank * off_domain,
        rows_domain=tokens * per_domain,
        rows_domain_off_domain=tokens * per_domain * off_domain,
        method=method,
    )


def _replayed(
    spec: RoutingSpec, num_experts: int, topk: int, ranks: int, ranks_per_domain: int, tokens: int
) -> ExpectedRows:
    ids = [generate(spec, tokens, num_experts, topk, 0, rank)[0] for rank in range(ranks)]
    counts = count_rows(ids, num_experts, ranks_per_domain)
    return ExpectedRows(**{name: value / ranks for name, value in vars(counts).items()}, method="replay")


@lru_cache(maxsize=64)
def _sampled_distinct(
    spec: RoutingSpec,
    num_experts: int,
    topk: int,
    ranks: int,
    domains: int,
    seed: int,
    num_groups: int | None,
    group_topk: int | None,
    group_score: GroupScore,
) -> tuple[float, float]:
    ids, _ = generate(spec, MONTE_CARLO_TOKENS, num_experts, topk, seed, 0, num_groups, group_topk, group_score)
    by_rank = count_rows([ids, *(ids[:0] for _ in range(ranks - 1))], num_experts, ranks // domains)
    return by_rank.rows_rank / MONTE_CARLO_TOKENS, by_rank.rows_domain / MONTE_CARLO_TOKENS


def _check_sizes(num_experts: int, ranks: int, ranks_per_domain: int) -> None:
    if ranks < 1 or num_experts % ranks:
        raise WorkloadError(
            f"{ranks} ranks do not divide the {num_experts} experts", "choose an EP size that divides the experts"
        )
    if ranks_per_domain < 1 or ranks % ranks_per_domain:
        raise WorkloadError(
            f"domains of {ranks_per_domain} ranks do not divide the {ranks} ranks of the expert-parallel group",
            "give the number of EP ranks inside one NVLink domain or node",
        )
