"""What the guide's order is worth: judged on pairs, and worded from the counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_dispatch.core.registry import load_backends
from moe_dispatch.decide.guide_rules import load_rules
from moe_dispatch.decide.prior import PriorCase, ep_class, judge, score
from moe_dispatch.decide.prior_words import confidence
from moe_dispatch.evidence.published import load_pairs
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.workload.workload import load_workload

SPECS = load_backends()
PAIRS = {pair.id: pair for pair in load_pairs()}


def case_of(pair_id: str, **changes: object) -> PriorCase:
    (case,) = judge([replace(PAIRS[pair_id], **changes)], SPECS)
    return case


def test_two_packages_are_predicted_by_their_order() -> None:
    case = case_of("ab-dsv3-gb200-deepep-vs-hybridep")
    assert (case.predicted, case.measured, case.outcome) == ("hybridep", "hybridep", "hit")
    assert not case.in_sample


def test_the_baseline_is_predicted_where_a_rule_expects_it() -> None:
    small = case_of("ab-moeperf-deepseek-bf16-a2a-vs-deepep")
    assert (small.predicted, small.measured, small.outcome) == ("alltoall", "deepep", "miss")
    few_nodes = case_of("ab-aws-q30b-h100-64-ep16-mb1-off-a2a-vs-nvshmem")
    assert (few_nodes.predicted, few_nodes.outcome) == ("alltoall", "hit")
    many_nodes = case_of("ab-aws-dsv3-b300-256-mb4-off-a2a-vs-uccl")
    assert (many_nodes.predicted, many_nodes.outcome) == ("deepep", "hit")


def test_a_pair_whose_rule_rests_on_it_is_in_sample() -> None:
    assert case_of("ab-aws-q30b-h100-64-ep16-mb1-off-a2a-vs-nvshmem").in_sample


@pytest.mark.parametrize(
    ("pair", "changes", "why"),
    [
        ("ab-dsv3-gb200-deepep-vs-hybridep", {"confounders": ("graphs",)}, "more than the dispatcher differs"),
        ("ab-dsv3-gb200-deepep-vs-hybridep", {"ep": None}, "EP or hardware is not stated"),
        ("ab-dsv3-gb200-deepep-vs-hybridep", {"isolation": "recipe"}, "more than the dispatcher differs (recipe)"),
        ("ab-automodel3827-memory", {}, "no speed is published"),
        ("ab-aws-q235b-b300-32-ep16-mb1-off-uccl-vs-nvshmem", {}, "both arms are one dispatcher"),
    ],
)
def test_what_is_not_counted_says_why(pair: str, changes: dict[str, object], why: str) -> None:
    case = case_of(pair, **changes)
    assert case.outcome == "not counted"
    assert why in case.why


def test_arms_within_the_threshold_are_close_and_count_for_neither_side() -> None:
    case = case_of("ab-moeperf-mixtral-bf16-a2a-vs-hybridep")
    assert case.outcome == "close"
    assert score([case], "").cases == 0


def test_another_order_in_the_data_changes_the_score() -> None:
    rules = [
        rule.model_copy(update={"order": tuple(reversed(rule.order)), "baseline_hard_to_beat": False})
        for rule in load_rules()
    ]
    before, after = score(judge(PAIRS.values(), SPECS), ""), score(judge(PAIRS.values(), SPECS, rules), "")
    assert before.cases == after.cases
    assert before.hits != after.hits


def test_every_pair_is_judged_and_totals_add_up() -> None:
    cases = judge(PAIRS.values(), SPECS)
    total = score(cases, "")
    not_counted = sum(case.outcome == "not counted" for case in cases)
    assert total.cases + total.close + not_counted == len(PAIRS)
    assert total.fresh <= total.cases


@pytest.mark.parametrize(("ep", "name"), [(1, "small"), (8, "small"), (9, "medium"), (63, "medium"), (64, "large")])
def test_classes_of_ep(ep: int, name: str) -> None:
    assert ep_class(ep) == name


def made(outcome: str, *, in_sample: bool = False, count: int = 1) -> list[PriorCase]:
    one = PriorCase(
        pair="p", hardware="h100", ep_class="medium", family="qwen3", network="", outcome=outcome, in_sample=in_sample
    )
    return [one] * count


@pytest.mark.parametrize(
    ("cases", "word", "says"),
    [
        (made("hit", count=4), "untested", "only 4 published pairs"),
        (made("hit", count=9) + made("miss"), "fair", "9 of 10 published pairs of qwen3 on h100 with medium EP"),
        (made("hit", count=6) + made("miss", count=4), "modest", "6 of 10"),
        (made("hit", count=2) + made("miss", count=8), "low", "more often wrong than right"),
        (made("hit", in_sample=True, count=9), "untested", "rest on these very pairs"),
        (
            made("hit", in_sample=True, count=20) + made("hit") + made("miss", count=5),
            "low",
            "and in 1 of the 6 that none of its rules rests on",
        ),
    ],
)
def test_confidence_is_worded_from_the_counts(cases: list[PriorCase], word: str, says: str) -> None:
    found = confidence(load_workload("qwen3-30b-a3b", ep=16), declared_site("h100", 2), cases)
    assert found.word == word
    assert says in found.statement


def test_pairs_over_another_network_do_not_speak_for_this_one() -> None:
    cases = [replace(case, network="efa") for case in made("hit", count=9)]
    workload = load_workload("qwen3-30b-a3b", ep=16)
    assert "all kinds" in confidence(workload, declared_site("h100", 2), cases).statement
    assert "over efa" in confidence(workload, declared_site("h100-efa", 2), cases).statement
