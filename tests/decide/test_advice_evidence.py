"""Published evidence beside a workload: what differs is said, and a conflict is one only when sources contradict."""

from __future__ import annotations

import pytest

from moe_dispatch.decide.advice_evidence import (
    Claim,
    Claims,
    claims_of,
    nearest_pairs,
    nearest_steps,
    recipes_in_force,
)
from moe_dispatch.evidence.closest import EvidenceQuery
from moe_dispatch.evidence.published import load_pairs, load_recipes, load_training

Q235 = EvidenceQuery(model="qwen3-235b-a22b", hardware="h100", precision="bf16", ep=32, gpus=256, seq_length=4096)


def claim(dispatcher: str, *over: str, favours: bool = True) -> Claim:
    return Claim(
        dispatcher=dispatcher, kind="measured pair", favours=favours, over=over, statement="", date="", source=""
    )


@pytest.mark.parametrize(
    ("claims", "conflict"),
    [
        ([claim("a"), claim("b")], ("a", "b")),
        ([claim("a", "b"), claim("b", "a")], ("a", "b")),
        ([claim("a"), claim("b", "a")], ("a", "b")),
        ([claim("a", "b"), claim("b", "c")], ()),
        ([claim("a"), claim("b", "c")], ()),
        ([claim("a"), claim("a")], ()),
        ([claim("a"), claim("b", favours=False)], ()),
        ([], ()),
    ],
)
def test_a_conflict_is_a_contradiction(claims: list[Claim], conflict: tuple[str, ...]) -> None:
    assert Claims(claims=tuple(claims)).conflict == conflict


def test_claims_of_qwen3_235b_on_h100_conflict_and_stand_side_by_side() -> None:
    claims = claims_of(Q235, load_pairs(), load_training(), load_recipes())
    assert claims.conflict == ("alltoall", "deepep")
    assert {one.dispatcher for one in claims.claims} == {"alltoall", "deepep", "hybridep"}
    in_force = [one for one in claims.claims if one.kind == "recipe in force"]
    assert {one.dispatcher for one in in_force} == {"alltoall"}
    assert "EP overlap on" in in_force[0].statement
    variant = next(one for one in claims.claims if one.kind == "recipe variant")
    assert (variant.dispatcher, variant.favours) == ("hybridep", False)


def test_two_pairs_that_form_a_ladder_do_not_conflict() -> None:
    query = EvidenceQuery(model="deepseek-v3", hardware="gb200", precision="fp8", ep=64, gpus=256, seq_length=4096)
    claims = claims_of(query, load_pairs(), load_training(), load_recipes())
    assert {"deepep", "hybridep"} <= set(claims.favoured)
    assert claims.conflict == ()


def test_long_sequences_do_not_speak_for_short_ones() -> None:
    short = claims_of(Q235, load_pairs(), load_training(), load_recipes())
    assert not any("sequence 131072" in one.statement for one in short.claims)
    long = EvidenceQuery(model="qwen3-235b-a22b", hardware="h100", precision="bf16", seq_length=131072)
    assert any("sequence 131072" in one.statement for one in claims_of(long, [], load_training(), []).claims)


def test_recipes_without_a_variant_come_first() -> None:
    first, *_, last = recipes_in_force(Q235, load_recipes())
    assert (first[1].dispatcher, first[1].variant) == ("alltoall", "")
    assert last[1].variant


def test_a_model_without_recipes_has_none() -> None:
    assert recipes_in_force(EvidenceQuery(model="no-such", hardware="h100"), load_recipes()) == ()


def test_every_near_row_says_how_it_differs_and_carries_its_labels() -> None:
    query = EvidenceQuery(model="qwen3-30b-a3b", hardware="h100", ep=16, gpus=16, precision="bf16", micro_batch=1)
    (nearest, *_) = nearest_steps(query, load_training())
    assert nearest.id == "mbcard-qwen3-30b-a3b-pretrain_performance-h100"
    assert "hybridep (stated): 20.15 s a step" in nearest.statement
    assert {"benchmark_only", "forced_balance"} <= set(nearest.labels)
    pairs = nearest_pairs(query, load_pairs())
    assert all(pair.distance > 0 and pair.differences for pair in pairs)
    assert [pair.distance for pair in pairs] == sorted(pair.distance for pair in pairs)
    assert "over efa" in pairs[0].statement


def test_an_inferred_arm_and_a_confounder_are_said() -> None:
    query = EvidenceQuery(model="deepseek-v3", hardware="h100")
    statement = next(pair.statement for pair in nearest_pairs(query, load_pairs(), 60) if "mb1731" in pair.id)
    assert "deepep (inferred) faster than hybridep" in statement
    assert "also differs: tp 2 against 4" in statement
