import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.evidence.record import Traffic
from moe_dispatch.workload.routing import RoutingSpec, generate
from moe_dispatch.workload.traffic import (
    ExpectedRows,
    RowCounts,
    count_rows,
    expected_rows,
    group_hit_probabilities,
    hit_probability,
    inclusion_fractions,
)

SIGMAS = 6
MC_TOKENS = 20_000


def brute_force(ids_by_rank, experts, per_domain):
    """Counts by sets, token by token."""
    ranks = len(ids_by_rank)
    counts = dict.fromkeys((field.name for field in dataclasses.fields(RowCounts)), 0)
    for source, ids in enumerate(ids_by_rank):
        for row in ids:
            owners = [int(e) // (experts // ranks) for e in row if e >= 0]
            domains = {owner // per_domain for owner in owners}
            home = source // per_domain
            counts["rows_copies"] += len(owners)
            counts["rows_copies_off_rank"] += sum(o != source for o in owners)
            counts["rows_copies_off_domain"] += sum(o // per_domain != home for o in owners)
            counts["rows_rank"] += len(set(owners))
            counts["rows_rank_off_rank"] += len(set(owners) - {source})
            counts["rows_rank_off_domain"] += sum(o // per_domain != home for o in set(owners))
            counts["rows_domain"] += len(domains)
            counts["rows_domain_off_domain"] += len(domains - {home})
    return counts


@st.composite
def routings(draw):
    per_domain, domains, local = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    ranks = per_domain * domains
    experts = ranks * local
    topk = draw(st.integers(1, min(experts, 4)))
    token = st.permutations(range(experts)).map(lambda order: order[:topk])
    dropped = st.tuples(token, st.lists(st.booleans(), min_size=topk, max_size=topk)).map(
        lambda pair: [-1 if drop else expert for expert, drop in zip(*pair, strict=True)]
    )
    rows = draw(st.lists(st.lists(dropped, max_size=5), min_size=ranks, max_size=ranks))
    ids = [np.array(part, dtype=np.int64).reshape(len(part), topk) for part in rows]
    return ids, experts, per_domain


@settings(max_examples=150, deadline=None)
@given(routings())
def test_counts_equal_brute_force(case):
    ids, experts, per_domain = case
    assert vars(count_rows(ids, experts, per_domain)) == brute_force(ids, experts, per_domain)


def test_field_names_are_those_of_the_record():
    names = {field.name for field in dataclasses.fields(RowCounts)}
    assert names == set(Traffic.model_fields) - {"row_bytes"}
    assert names == {field.name for field in dataclasses.fields(ExpectedRows)} - {"method"}


@given(st.integers(1, 7), st.integers(0, 7), st.data())
def test_hit_probability_equals_enumeration(experts, owned, data):
    owned = min(owned, experts)
    topk = data.draw(st.integers(1, experts))
    hits = [bool(set(choice) & set(range(owned))) for choice in itertools.combinations(range(experts), topk)]
    assert hit_probability(experts, topk, owned) == pytest.approx(np.mean(hits), abs=1e-12)


@given(st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6), st.integers(1, 4))
def test_skewed_hit_probability_equals_enumeration(raw, topk):
    shares = np.array(raw) / sum(raw) * topk
    assume(shares.max() < 0.99)
    weights = shares / (1 - shares)
    subsets = list(itertools.combinations(range(6), topk))
    mass = np.array([weights[list(subset)].prod() for subset in subsets])
    for group, q in enumerate(group_hit_probabilities(shares, topk, 3)):
        hit = np.array([bool({2 * group, 2 * group + 1} & set(subset)) for subset in subsets])
        assert q == pytest.approx(mass[hit].sum() / mass.sum(), abs=1e-12)


@pytest.mark.parametrize("topk", [1, 4, 8, 64])
def test_skewed_form_is_exact_for_uniform_shares(topk):
    q = group_hit_probabilities(np.full(64, topk / 64), topk, 8)
    np.testing.assert_allclose(q, hit_probability(64, topk, 8), rtol=1e-9)


def monte_carlo(spec, experts, topk, ranks, per_domain, seed, groups=(None, None), score="top_sum"):
    """Mean distinct ranks and domains of a token, with their standard errors, by numpy sets."""
    ids, _ = generate(spec, MC_TOKENS, experts, topk, seed, 17, *groups, score)
    owner = ids // (experts // ranks)
    results = []
    for label in (owner, owner // per_domain):
        ordered = np.sort(label, axis=1)
        distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
        results.append((distinct.mean(), distinct.std() / math.sqrt(MC_TOKENS)))
    return results


@pytest.mark.parametrize(("experts", "topk", "ranks", "per_domain"), [(128, 8, 16, 8), (256, 8, 64, 8), (32, 4, 8, 2)])
def test_uniform_closed_form_equals_monte_carlo(experts, topk, ranks, per_domain):
    rows = expected_rows(experts, topk, ranks, per_domain, 1)
    assert rows.method == "closed_form"
    sampled = monte_carlo(RoutingSpec.parse("force_balanced"), experts, topk, ranks, per_domain, 0)
    for closed, (mean, error) in zip((rows.rows_rank, rows.rows_domain), sampled, strict=True):
        assert abs(closed - mean) < SIGMAS * error + 1e-12


SKEW_ERROR = 0.015
"""Largest published error of a distinct count from Zipf weights (192 cases, E 64-256, K 4 and 8, R 2-64, S 0.3-1.2)."""


@pytest.mark.parametrize("skew", [0.3, 0.8, 1.2])
@pytest.mark.parametrize(("experts", "topk", "ranks"), [(64, 4, 8), (128, 8, 16), (256, 8, 64)])
def test_zipf_closed_form_equals_monte_carlo(skew, experts, topk, ranks):
    spec = RoutingSpec.parse(f"zipf:{skew}")
    rows = expected_rows(experts, topk, ranks, ranks // 2, 1, routing=spec, seed=4)
    sampled = monte_carlo(spec, experts, topk, ranks, ranks // 2, 4)
    for closed, (mean, error) in zip((rows.rows_rank, rows.rows_domain), sampled, strict=True):
        assert abs(closed - mean) < SKEW_ERROR * mean + SIGMAS * error


def test_inclusion_fractions_sum_to_topk_and_keep_order():
    shares = inclusion_fractions(-1.1 * np.log(np.arange(1, 65)), 6)
    assert shares.sum() == pytest.approx(6, abs=1e-9)
    assert (np.diff(shares) < 0).all()


# DeepSeek-V3 (256 experts, top-8, 4 of 8 groups): distinct domains or ranks of a token, from simulations of the
# published gates; `amax` is DeepEP's test, `top_sum` the model's own.
PUBLISHED_GROUPS = [
    ("amax", 64, 8, "rows_domain", 3.985),
    ("top_sum", 64, 8, "rows_domain", 3.971),
    ("amax", 64, 16, "rows_domain", 3.14),
    ("top_sum", 64, 16, "rows_domain", 3.12),
    ("amax", 64, 8, "rows_rank", 7.48),
    ("top_sum", 64, 8, "rows_rank", 7.49),
]
GROUP_TOLERANCE = 0.02
"""Four standard errors of 16384 tokens whose distinct ranks have sd 0.65; the published figures are rounded to 0.01.
A random choice of groups is off by 0.12 to 0.35, so the test tells them apart."""


@pytest.mark.parametrize(("score", "ranks", "per_domain", "field", "published"), PUBLISHED_GROUPS)
def test_group_limited_counts_equal_the_published_ones(score, ranks, per_domain, field, published):
    rows = expected_rows(256, 8, ranks, per_domain, 1, num_groups=8, group_topk=4, group_score=score)
    assert rows.method == "monte_carlo"
    assert getattr(rows, field) == pytest.approx(published, abs=GROUP_TOLERANCE)


# Bandwidth x time of uccl-project/uccl@da914a2:ep/README.md: 8 ranks of one node, 4096 tokens, hidden 7168, top-8 of
# 256; the numerator is tokens x distinct ranks (own included) x row bytes. (GB/s, us, row bytes)
UCCL_EP8 = [(320, 500, 7392), (319, 973, 14336), (280, 571, 7392), (426, 727, 14336)]


@pytest.mark.parametrize(("gbps", "microseconds", "row"), UCCL_EP8)
def test_published_bytes_of_a_single_node(gbps, microseconds, row):
    rows = expected_rows(256, 8, 8, 8, 4096)
    # Half a unit in the last digit of both factors, and four standard errors of 4096 tokens (sd below 1 in 5.3).
    tolerance = 0.5 / gbps + 0.5 / microseconds + 4 / math.sqrt(4096) / 5.29
    assert rows.rows_rank * row == pytest.approx(gbps * 1e9 * microseconds * 1e-6, rel=tolerance)


def test_alltoall_nic_bytes_of_qwen3_30b_on_two_nodes():
    # 16 ranks, 8 to a node, 4096 tokens of 2048 bf16: half of all copies cross, or one row for each remote node.
    rows = expected_rows(128, 8, 16, 8, 4096)
    assert rows.rows_copies_off_domain * 4096 == 4096 * 8 * 0.5 * 4096
    assert rows.rows_domain_off_domain * 4096 == pytest.approx(16.7e6, rel=0.005)
    assert rows.rows_copies_off_domain / rows.rows_domain_off_domain == pytest.approx(4.0, abs=0.05)


@pytest.mark.parametrize("text", ["force_balanced", "zipf:0.8"])
def test_expectation_agrees_with_exact_counts_over_all_ranks(text):
    spec, experts, topk, ranks, per_domain, tokens = RoutingSpec.parse(text), 32, 4, 8, 4, 4000
    ids = [generate(spec, tokens, experts, topk, 2, rank)[0] for rank in range(ranks)]
    counts = count_rows(ids, experts, per_domain)
    rows = expected_rows(experts, topk, ranks, per_domain, tokens, routing=spec, seed=2)
    for field in dataclasses.fields(RowCounts):
        # A token's count lies in 0..K, so its sd is at most K/2.
        error = SIGMAS * topk / 2 * math.sqrt(ranks * tokens)
        exact = getattr(counts, field.name)
        assert abs(getattr(rows, field.name) * ranks - exact) <= error + SKEW_ERROR * exact


def test_recorded_choices_are_counted_exactly(tmp_path):
    np.save(tmp_path / "t.npy", np.random.default_rng(1).permuted(np.tile(np.arange(8), (10, 1)), axis=1)[:, :2])
    spec = RoutingSpec.parse(f"trace:{tmp_path / 't.npy'}")
    rows = expected_rows(8, 2, 4, 2, 5, routing=spec)
    exact = count_rows([generate(spec, 5, 8, 2, 0, rank)[0] for rank in range(4)], 8, 2)
    assert rows.method == "replay"
    assert {name: value / 4 for name, value in vars(exact).items()} == {
        name: value for name, value in vars(rows).items() if name != "method"
    }


def test_measured_fractions_win_and_one_domain_has_no_remote_rows():
    hot = np.full(16, 1 / 15)
    hot[0] = 1.0
    rows = expected_rows(16, 2, 4, 4, 100, fractions=hot.tolist())
    assert rows.rows_domain == pytest.approx(100)
    assert rows.rows_domain_off_domain == rows.rows_copies_off_domain == 0
    # Expert 0 always, and one of the 15 others: rank 0 also holds three of them.
    assert rows.rows_rank == pytest.approx(100 * (1 + 12 / 15), rel=1e-6)


def test_sizes_that_do_not_divide():
    with pytest.raises(WorkloadError, match="3 ranks do not divide the 32 experts"):
        expected_rows(32, 4, 3, 1, 1)
    with pytest.raises(WorkloadError, match="domains of 3 ranks do not divide the 8 ranks"):
        count_rows([np.zeros((1, 1), dtype=np.int64)] * 8, 32, 3)
    with pytest.raises(WorkloadError, match="rank 0: expert ids run from 40"):
        count_rows([np.full((1, 1), 40)], 32, 1)
    with pytest.raises(WorkloadError, match=r"sum to 1\.0000"):
        expected_rows(4, 2, 2, 1, 1, fractions=[0.25] * 4)
