import json
import math

import numpy as np
import pytest

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.routing import RoutingSpec, generate, generate_logits

TOKENS = 20_000
SIGMAS = 6
"""Monte Carlo bounds are six standard errors: one false alarm in 5e8 comparisons."""


def parse(text):
    return RoutingSpec.parse(text)


def fractions(ids, experts):
    return np.bincount(ids[ids >= 0].ravel(), minlength=experts) / len(ids)


@pytest.mark.parametrize("text", ["force_balanced", "zipf:0", "zipf:1.5", "biased:2"])
def test_choices_are_distinct_sorted_and_weighted_by_softmax(text):
    ids, probs = generate(parse(text), 500, 32, 6, seed=1, rank=2)
    logits = generate_logits(parse(text), 500, 32, 6, seed=1, rank=2)
    assert (ids.dtype, probs.dtype, ids.shape) == (np.int64, np.float32, (500, 6))
    assert all(len(set(row)) == 6 for row in ids.tolist())
    best = [sorted(row, reverse=True)[:6] for row in logits.tolist()]
    chosen = np.take_along_axis(logits, ids, axis=1)
    assert np.array_equal(chosen, np.array(best, dtype=np.float32))
    exact = np.exp(chosen.astype(np.float64))
    # float32 exp, five additions and a division: well under 32 ulp
    np.testing.assert_allclose(probs, exact / exact.sum(axis=1, keepdims=True), rtol=32 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("text", ["force_balanced", "zipf:1", "biased:1"])
def test_same_seed_and_rank_repeat_and_others_differ(text):
    first, again, other_rank, other_seed = (
        generate(parse(text), 64, 16, 4, seed, rank)[0] for seed, rank in [(3, 0), (3, 0), (3, 1), (4, 0)]
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other_rank)
    assert not np.array_equal(first, other_seed)


def test_force_balanced_picks_every_expert_equally_often():
    share = fractions(generate(parse("force_balanced"), TOKENS, 32, 4, 0, 0)[0], 32)
    expected = 4 / 32
    error = math.sqrt(expected * (1 - expected) / TOKENS)
    assert np.abs(share - expected).max() < SIGMAS * error


def test_zipf_top1_follows_the_weights_and_ranks_share_the_favourite():
    weights = np.arange(1, 17) ** -1.2
    weights /= weights.sum()
    shares = [fractions(generate(parse("zipf:1.2"), TOKENS, 16, 1, 5, rank)[0], 16) for rank in (0, 3)]
    for share in shares:
        error = np.sqrt(weights * (1 - weights) / TOKENS)
        assert (np.abs(np.sort(share)[::-1] - weights) < SIGMAS * error + 1e-12).all()
    assert shares[0].argmax() == shares[1].argmax()


def test_zipf_pairs_follow_sequential_drawing():
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    ids, _ = generate(parse("zipf:1"), TOKENS, 4, 2, 9, 0)
    order = np.argsort(-fractions(generate(parse("zipf:1"), TOKENS, 4, 1, 9, 0)[0], 4))
    place = np.argsort(order)  # popularity rank of each expert
    for first in range(4):
        for second in set(range(4)) - {first}:
            expected = weights[first] * weights[second] / (1 - weights[first])
            seen = np.mean((place[ids[:, 0]] == first) & (place[ids[:, 1]] == second))
            assert abs(seen - expected) < SIGMAS * math.sqrt(expected * (1 - expected) / TOKENS)


def test_bias_is_shared_by_ranks_and_scales_with_std():
    loads = [fractions(generate(parse("biased:1"), TOKENS, 16, 2, 8, rank)[0], 16) for rank in (0, 1)]
    error = math.sqrt(2 * 0.25 / TOKENS)
    assert np.abs(loads[0] - loads[1]).max() < SIGMAS * error
    none = fractions(generate(parse("biased:0"), TOKENS, 16, 2, 8, 0)[0], 16)
    assert loads[0].std() > 10 * none.std()


@pytest.mark.parametrize("score", ["top_sum", "amax"])
def test_group_limited_choices_stay_in_the_best_groups(score):
    spec, groups, kept, topk = parse("force_balanced"), 8, 2, 4
    ids, _ = generate(spec, 300, 32, topk, 0, 0, groups, kept, score)
    logits = generate_logits(spec, 300, 32, topk, 0, 0)
    for row, chosen in zip(logits.astype(np.float64), ids, strict=True):
        values = (1 / (1 + np.exp(-row))).reshape(groups, 4)
        scores = [max(v) if score == "amax" else sum(sorted(v)[-2:]) for v in values]
        allowed = set(np.argsort(scores)[-kept:])
        inside = [e for e in np.argsort(-row) if e // 4 in allowed]
        assert chosen.tolist() == inside[:topk]


def test_edges():
    ids, probs = generate(parse("force_balanced"), 0, 8, 2, 0, 0, 4, 2)
    assert (ids.shape, probs.shape) == ((0, 2), (0, 2))
    ids, _ = generate(parse("zipf:2"), 10, 4, 4, 0, 0)
    assert (np.sort(ids, axis=1) == np.arange(4)).all()
    with pytest.raises(WorkloadError, match="topk=5 of 4 experts is impossible"):
        generate(parse("force_balanced"), 1, 4, 5, 0, 0)


@pytest.mark.parametrize("text", ["natural", "", "zipf", "zipf:", "zipf:-1", "zipf:nan", "zipf:x", "force_balanced:1"])
def test_malformed_specs(text):
    with pytest.raises(WorkloadError, match=r"is not understood|finite number") as caught:
        parse(text)
    assert "zipf:S" in caught.value.fix


def test_canonical_spelling(tmp_path):
    assert parse("Force-Balanced").canonical == "force_balanced"
    assert parse("zipf: 1.0").canonical == parse("zipf:1").canonical == "zipf:1"
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("[[0, 1]]")
    (tmp_path / "c.json").write_text("[[0, 2]]")
    names = [parse(f"trace:{tmp_path / n}").canonical for n in ("a.json", "b.json", "c.json")]
    assert names[0] == names[1] != names[2]
    assert str(tmp_path) not in names[0]


def test_trace_of_ids_is_sharded_and_tiled(tmp_path):
    recorded = np.array([[0, 1], [2, 3], [4, 5], [6, -1], [7, 0]])
    np.save(tmp_path / "t.npy", recorded)
    (tmp_path / "t.json").write_text(json.dumps({"expert_ids": recorded.tolist()}))
    for name in ("t.npy", "t.json"):
        spec = parse(f"trace:{tmp_path / name}")
        shards = [generate(spec, 3, 8, 2, 0, rank) for rank in range(3)]
        seen = np.concatenate([ids for ids, _ in shards])
        assert np.array_equal(seen, recorded[np.arange(9) % 5])
        assert shards[1][1].tolist() == [[0.5, 0.0], [0.5, 0.5], [0.5, 0.5]]


def test_trace_with_probs(tmp_path):
    np.savez(tmp_path / "t.npz", expert_ids=[[0, 1], [2, -1]], probs=[[0.75, 0.25], [1.0, 0.5]])
    _, probs = generate(parse(f"trace:{tmp_path / 't.npz'}"), 2, 4, 2, 0, 0)
    assert probs.tolist() == [[0.75, 0.25], [1.0, 0.0]]


LOAD_ERROR = 0.02
"""Drawing without replacement from clocks set by the marginals is an approximation: 2 % of a token, plus sampling."""


def test_trace_of_loads_reproduces_them(tmp_path):
    loads = np.random.default_rng(0).gamma(2.0, size=32)
    loads[7] = 0.0
    np.save(tmp_path / "loads.npy", loads * 1000)
    share = fractions(generate(parse(f"trace:{tmp_path / 'loads.npy'}"), TOKENS, 32, 4, 0, 0)[0], 32)
    wanted = loads / loads.sum() * 4
    assert share[7] == 0
    assert np.abs(share - wanted).max() < LOAD_ERROR + SIGMAS * math.sqrt(0.25 / TOKENS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[0, 1, 2]], "holds top-3 choices, the workload needs top-2"),
        ([[0, 8]], "expert ids run from 0 to 8"),
        ([[0, -2]], "expert ids run from -2"),
        ([[3, 3]], "names an expert twice"),
        ([[0, 1], [2]], "different lengths"),
        ([[0.5, 1.0]], "neither choices nor loads"),
        ([], "holds loads of 0 experts|neither"),
        ([1, 2, 3], "loads of 3 experts, the workload has 8"),
        ([1, 0, 0, 0, 0, 0, 0, 0], "at least topk=2"),
        ([90, 1, 1, 1, 1, 1, 1, 4], "expert 0 has 1.800 times as many rows"),
        ({"routes": [[0, 1]], "other": 1}, "exactly one of expert_ids and loads"),
        ({"expert_ids": [[0, 1]], "loads": [1]}, "exactly one of expert_ids and loads"),
        ({"expert_ids": [[0, 1]], "probs": [[1.0]]}, "probs have shape"),
    ],
)
def test_bad_traces(tmp_path, content, message):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    with pytest.raises(WorkloadError, match=message):
        generate(parse(f"trace:{path}"), 4, 8, 2, 0, 0)


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(WorkloadError, match="is not a file"):
        parse(f"trace:{tmp_path}")
    for name in ("t.json", "t.npy", "t.npz"):
        path = tmp_path / name
        path.write_bytes(b"{broken")
        with pytest.raises(WorkloadError, match="damaged or not a trace"):
            generate(parse(f"trace:{path}"), 4, 8, 2, 0, 0)
    (tmp_path / "t.csv").write_text("0,1")
    with pytest.raises(WorkloadError, match=r"suffix '.csv' is not known"):
        generate(parse(f"trace:{tmp_path / 't.csv'}"), 4, 8, 2, 0, 0)
