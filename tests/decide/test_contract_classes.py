"""What a difference in a field means: refused, disclosed because a backend needs, owns or ignores it, or harmless."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from training_records import ids, judged, run, runs

from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide.contract_table import DifferenceClass, FieldRule, contract_table
from moe_dispatch.decide.verdict import VerdictKind

GROUPS = {
    "hardware",
    "stack",
    "model",
    "batch",
    "layout",
    "routing",
    "precision",
    "recompute",
    "overlap",
    "graphs",
    "window",
    "kernels and host",
    "labels",
    "other",
}


def test_the_groups_are_those_of_the_guide() -> None:
    assert set(contract_table().groups) == GROUPS


@pytest.mark.parametrize(
    ("field", "group"),
    [
        ("workload.tp", "layout"),
        ("workload.routing", "routing"),
        ("workload.recompute_modules", "recompute"),
        ("site.cpu_affinity", "kernels and host"),
        ("stack.NCCL_NVLS_ENABLE", "kernels and host"),
        ("stack.nccl", "stack"),
        ("workload.nobody_knows", "other"),
    ],
)
def test_a_field_has_a_group_and_variables_match_by_prefix(field: str, group: str) -> None:
    assert contract_table().rule(field).group == group


def test_a_field_has_one_class() -> None:
    with pytest.raises(ValidationError, match="one class"):
        FieldRule(harmless=True, belongs_to=("deepep",))


@pytest.mark.parametrize(
    "field",
    [
        "workload__tp",
        "workload__routing",
        "workload__capacity_factor",
        "workload__recompute_granularity",
        "workload__cuda_graph_modules",
        "workload__overlap_moe_expert_parallel_comm",
        "stack__CUDA_DEVICE_MAX_CONNECTIONS",
        "stack__NVTE_FWD_LAYERNORM_SM_MARGIN",
        "site__cpu_affinity",
        "workload__grouped_gemm_impl",
        "measure__window",
        "stack__container",
        "workload__a_field_that_nobody_listed",
    ],
)
def test_a_confounder_is_refused_by_its_name(field: str) -> None:
    verdict = judged(runs("alltoall", 100, **{field: "this"}), runs("hybridep", 80, **{field: "that"}))
    dotted = field.replace("__", ".")
    assert verdict.kind is VerdictKind.NOT_COMPARABLE
    assert [one.field for one in verdict.contract.different] == [dotted]
    assert verdict.contract.different[0].kind is DifferenceClass.CONFOUNDER
    assert dotted in verdict.statement
    assert verdict.attribution.to == "nothing"
    assert not verdict.clean


COUPLED: list[tuple[str, Any, Any, str]] = [
    ("workload__router_dtype", "none", "fp32", "needed"),
    ("workload__permute_fusion", True, False, "ignored"),
    ("stack__NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "unset", "16", "belongs"),
    ("stack__deep_ep", "none", "1.2.1", "belongs"),
]


@pytest.mark.parametrize(("field", "base", "other", "why"), COUPLED)
def test_what_a_backend_needs_owns_or_ignores_is_disclosed(field: str, base: Any, other: Any, why: str) -> None:
    verdict = judged(runs("alltoall", 100, **{field: base}), runs("hybridep", 80, **{field: other}))
    assert verdict.kind is VerdictKind.WINNER
    assert [(one.field, one.kind) for one in verdict.contract.disclosed] == [
        (field.replace("__", "."), DifferenceClass.DISPATCHER_COUPLED)
    ]
    assert verdict.attribution.to == ("configuration" if why == "needed" else "dispatcher")
    assert verdict.clean


@pytest.mark.parametrize(("field", "base", "other", "why"), COUPLED)
def test_the_same_difference_between_other_arms_is_refused(field: str, base: Any, other: Any, why: str) -> None:
    """allgather reads neither HybridEP's variables nor DeepEP's package, so a difference there changes nothing."""
    verdict = judged(runs("alltoall", 100, **{field: base}), runs("allgather", 80, **{field: other}))
    assert verdict.kind is (VerdictKind.WINNER if why == "belongs" else VerdictKind.NOT_COMPARABLE)


def test_a_backend_with_another_value_than_it_needs_is_compared_like_any_arm() -> None:
    verdict = judged(
        runs("alltoall", 100, workload__router_dtype="none"), runs("hybridep", 80, workload__router_dtype="fp64")
    )
    assert verdict.kind is VerdictKind.NOT_COMPARABLE


def test_a_needed_setting_keeps_the_gain_from_being_credited_to_the_dispatcher() -> None:
    verdict = judged(
        runs("alltoall", 100, workload__router_dtype="none"), runs("hybridep", 80, workload__router_dtype="fp32")
    )
    assert verdict.attribution.changed == ("workload.router_dtype",)
    assert "configurations as a whole" in verdict.statement
    assert 'workload.router_dtype ("fp32" for hybridep; "none" for alltoall)' in verdict.statement


def test_two_builds_of_a_backend_are_not_one_arm() -> None:
    mixed = [*runs("hybridep", 80, launches=4, stack__deep_ep="1.2.1"), run("hybridep", [80.0], stack__deep_ep="1.3")]
    verdict = judged(runs("alltoall", 100), mixed)
    assert [one.field for one in verdict.contract.different] == ["stack.deep_ep"]
    assert {one.choice.label: one.launches for one in verdict.evidence}["hybridep"] == 4


def test_an_arm_that_ignores_a_field_joins_those_that_agree() -> None:
    """deepep ran with another permute setting than alltoall: refused, while hybridep, which ignores it, is compared."""
    verdict = judged(
        runs("alltoall", 100, workload__permute_fusion=True),
        runs("deepep", 70, workload__permute_fusion=False),
        runs("hybridep", 80, workload__permute_fusion=False),
    )
    assert {one.choice.label for one in verdict.evidence} == {"alltoall", "hybridep"}
    assert "Left out for another contract (workload.permute_fusion): deepep" in verdict.statement


@pytest.mark.parametrize("field", ["measure__seed", "measure__train_iters"])
def test_a_harmless_difference_is_listed_and_stops_nothing(field: str) -> None:
    verdict = judged(runs("alltoall", 100, **{field: 1}), runs("hybridep", 80, **{field: 2}))
    assert verdict.kind is VerdictKind.WINNER
    assert [one.kind for one in verdict.contract.disclosed] == [DifferenceClass.HARMLESS]
    unknown = judged(runs("alltoall", 100, **{field: None}), runs("hybridep", 80, **{field: 2}))
    assert unknown.kind is VerdictKind.WINNER


@pytest.mark.parametrize("field", ["site__cpu_affinity", "site__hosts", "stack__container", "workload__ep"])
@pytest.mark.parametrize("absent", [None, ...])
def test_what_a_training_step_must_know_caps_when_it_is_unknown_or_absent(field: str, absent: Any) -> None:
    groups = (runs("alltoall", 100, **{field: absent}), runs("hybridep", 80, **{field: absent}))
    verdict = judged(*groups)
    name = field.replace("__", ".")
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.contract.unknown == (name,)
    group = contract_table().rule(name).group
    assert judged(*groups, attest=(group,)).contract.attested == (name,)


def test_unknown_in_an_arm_that_does_not_read_the_field_is_no_gap() -> None:
    field = "stack__NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
    assert judged(runs("alltoall", 100, **{field: None}), runs("hybridep", 80, **{field: "16"})).kind is (
        VerdictKind.WINNER
    )
    assert judged(runs("alltoall", 100, **{field: "16"}), runs("hybridep", 80, **{field: None})).kind is (
        VerdictKind.INCONCLUSIVE
    )


def test_many_unknown_fields_are_counted_by_group_in_the_sentence_and_named_in_the_table() -> None:
    names = {f"stack__NCCL_{index}": None for index in range(8)}
    verdict = judged(runs("alltoall", 100, **names), runs("hybridep", 80, **names))
    assert "8 (8 of kernels and host)" in verdict.statement
    assert len(verdict.contract.unknown) == 8


def test_attesting_what_is_no_field_and_no_group_names_both() -> None:
    with pytest.raises(UsageError, match=r"(?s)'hardwear'.*groups: hardware"):
        judged(runs("alltoall", 100), attest=("hardwear",))


def test_several_confounders_are_all_named() -> None:
    verdict = judged(
        runs("deepep", 100, workload__tp=1, workload__routing="force_balanced"),
        runs("hybridep", 126, workload__tp=4, workload__routing="natural"),
    )
    assert {"confounded-tp", "confounded-routing"} <= ids(verdict)
