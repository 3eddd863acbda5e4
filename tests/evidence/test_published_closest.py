"""The distance to published evidence: its components, what is not stated, and what its data claim."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from moe_dispatch.evidence.closest import EvidenceQuery, closest, family_members, family_of, query_of, scale
from moe_dispatch.evidence.published import load_pairs, load_recipes, load_training
from moe_dispatch.evidence.published.rows import Row, Settings, TrainingRow
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.workload.catalogue import list_models
from moe_dispatch.workload.workload import load_workload

ROW = TrainingRow(
    id="row",
    group="test",
    model="deepseek-v3",
    hardware="h100",
    source="document: test",
    date="2026-08-01",
    date_basis="run",
    dispatcher_stated="deepep",
    ep=16,
    gpus=64,
    precision="fp8_mx",
    micro_batch=1,
    seq_length=4096,
    routing="force_balanced",
    fabric="infiniband",
)
QUERY = EvidenceQuery(
    model="deepseek-v3",
    hardware="h100",
    ep=16,
    gpus=64,
    precision="fp8_mx",
    micro_batch=1,
    seq_length=4096,
    routing="force_balanced",
    fabric="infiniband",
)


def weight(component: str) -> float:
    value: float = scale()["components"][component]["weight"]
    return value


def test_the_same_workload_is_at_distance_zero() -> None:
    (match,) = closest(QUERY, [ROW])
    assert (match.distance, match.differences) == (0, ())


@pytest.mark.parametrize(
    ("change", "component", "amount"),
    [
        ({"model": "kimi-k2"}, "model", 1),
        ({"model": "mixtral-8x7b"}, "model", 2),
        ({"hardware": "h200"}, "hardware", 1),
        ({"hardware": "b200"}, "hardware", 2),
        ({"hardware": "gb200"}, "hardware", 3),
        ({"ep": 64}, "ep", 2),
        ({"ep": 8}, "ep", 1),
        ({"gpus": 128}, "gpus", 1),
        ({"precision": "fp8_blockwise"}, "precision", 0.5),
        ({"precision": "bf16"}, "precision", 1),
        ({"micro_batch": 4}, "micro_batch", 2),
        ({"seq_length": 8192}, "sequence", 1),
        ({"routing": "dropless"}, "routing", 1),
        ({"fabric": "efa"}, "fabric", 1),
        ({"dispatcher_stated": None, "dispatcher_inferred": "deepep"}, "dispatcher", 1),
        ({"dispatcher_stated": None}, "dispatcher", 2),
    ],
)
def test_each_component_adds_its_weight_times_the_difference(
    change: dict[str, Any], component: str, amount: float
) -> None:
    (match,) = closest(QUERY, [replace(ROW, **change)])
    assert [each.component for each in match.differences] == [component]
    assert match.distance == pytest.approx(weight(component) * amount)


def test_age_counts_in_years_before_the_newest_row() -> None:
    newest, older = closest(QUERY, [replace(ROW, id="old", date="2025-08-01"), ROW])
    assert (newest.row.id, older.row.id) == ("row", "old")
    assert older.distance == pytest.approx(weight("date") * 365 / 365.25)


@pytest.mark.parametrize("component", ["ep", "gpus", "precision", "micro_batch", "hardware"])
def test_what_a_row_does_not_state_counts_as_unknown_and_is_said(component: str) -> None:
    absent = "" if component == "hardware" else None
    (match,) = closest(QUERY, [replace(ROW, **{component: absent})])
    assert match.distance == pytest.approx(weight(component) * scale()["unknown"])
    assert "not stated there" in match.differences[0].text


def test_what_the_workload_leaves_open_is_not_counted() -> None:
    (match,) = closest(replace(QUERY, ep=None), [replace(ROW, ep=64)])
    assert match.distance == 0


def test_a_row_from_a_particular_fabric_is_farther_when_ours_is_unknown() -> None:
    plain, efa = closest(
        replace(QUERY, fabric="unknown"), [replace(ROW, id="efa", fabric="efa"), replace(ROW, fabric="")]
    )
    assert (plain.row.id, efa.row.id) == ("row", "efa")
    assert (plain.distance, efa.distance) == (0, pytest.approx(weight("fabric") * scale()["unknown"]))


def test_distance_is_the_sum_of_its_differences_and_orders_the_matches() -> None:
    matches = closest(QUERY, load_training())
    assert len(matches) == len(load_training())
    for match in matches:
        assert match.distance == pytest.approx(sum(each.adds for each in match.differences))
    assert [match.distance for match in matches] == sorted(match.distance for match in matches)
    assert len(closest(QUERY, load_training(), 5)) == 5


def test_the_recipe_in_force_for_sixteen_h100_is_found_first() -> None:
    query = query_of(load_workload("qwen3-30b-a3b", ep=16), declared_site("h100", 2))
    nearest = closest(query, load_recipes(), 1)[0]
    assert nearest.row.recipe == "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"
    assert nearest.distance == 0


def test_a_training_precision_is_compared_more_exactly_than_the_rows_that_travel() -> None:
    workload = load_workload("deepseek-v3", ep=64)
    assert query_of(workload, precision="fp8_mx").precision == "fp8_mx"
    assert query_of(workload).precision == "bf16"
    assert query_of(workload).hardware is None


def test_pairs_named_as_reversals_differ_in_that_component_only_and_in_the_winner() -> None:
    pairs = {pair.id: pair for pair in load_pairs()}
    named = {name: each["reversed"] for name, each in scale()["components"].items() if "reversed" in each}
    assert named
    for component, (first, second) in named.items():
        one, other = pairs[first], pairs[second]
        assert one.winner is not None
        assert other.winner is not None
        assert one.winner.dispatcher != other.winner.dispatcher
        settings = {each.name for each in fields(Settings)} - {each.name for each in fields(Row)}
        assert {name for name in settings if getattr(one, name) != getattr(other, name)} == {component}


def test_families_name_models_that_exist() -> None:
    known = {row.model for rows in (load_training(), load_recipes(), load_pairs()) for row in rows}
    known |= {entry.name for entry in list_models()}
    listed = {model for model in known if family_of(model) != model}
    for family in {family_of(model) for model in listed}:
        assert family_members(family) <= known, family
    assert family_of("a-model-of-its-own") == "a-model-of-its-own"
