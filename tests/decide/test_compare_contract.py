"""Contract fields are equal, different or unknown; what differs is refused by name; failures are never slow."""

from __future__ import annotations

import math

import pytest
from decide_records import arm_records, record
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.decide.compare import compare
from moe_dispatch.decide.contract import partition
from moe_dispatch.evidence.record import Iteration, Performance, RunStatus

EXACT = 1e-9
"""Relative; the same sums of logarithms in another order."""


def ids(findings: object) -> set[str]:
    return {finding.id for finding in findings}  # type: ignore[attr-defined]


def test_equal_contracts_are_compared_with_the_hand_computed_ratio() -> None:
    rows = [
        *(record("alltoall", [100.0, 100.0, 100.0, 100.0], launch=index) for index in range(5)),
        *(record("hierarchical", [80.0, 90.0, 90.0, 95.0], launch=index) for index in range(5)),
    ]
    found = compare(rows)
    assert found.baseline is not None
    assert found.baseline.label == "alltoall"
    interval = found.ratio("hierarchical", "alltoall")
    assert interval is not None
    assert interval.ratio == pytest.approx(0.9, rel=EXACT)
    assert interval.paired
    assert found.ratio("alltoall", "hierarchical") == interval.inverse
    assert [arm.label for arm in found.arms] == ["hierarchical", "alltoall"]
    assert found.arms[0].launch_medians_us == (90.0,) * 5
    assert found.contract.equal["workload.tp"] == 1
    assert found.contract.different == ()
    assert found.contract.unknown == ()


def test_a_different_field_is_refused_and_named_with_values_and_arms() -> None:
    rows = [*arm_records("alltoall", 100), *arm_records("hierarchical", 80, tp=4, torch="2.9.0")]
    found = compare(rows)
    assert len(found.arms) == 1
    assert found.ratios == ()
    assert {difference.field for difference in found.contract.different} == {"workload.tp", "stack.torch"}
    tp = next(difference for difference in found.contract.different if difference.field == "workload.tp")
    assert tp.arms_of_value == {"1": ("alltoall",), "4": ("hierarchical",)}
    errors = [finding for finding in found.findings if finding.severity is Severity.ERROR]
    assert ids(errors) == {"confounded-tp", "confounded-torch"}


def test_an_arm_of_another_contract_is_left_out_and_the_rest_compared() -> None:
    rows = [*arm_records("alltoall", 100), *arm_records("hierarchical", 80), *arm_records("allgather", 50, nodes=2)]
    found = compare(rows)
    assert {arm.label for arm in found.arms} == {"alltoall", "hierarchical"}
    assert found.excluded == ("allgather",)
    assert {f.id: f.severity for f in found.findings}["confounded-nodes"] is Severity.ERROR


def test_more_records_of_the_same_arms_elsewhere_are_information_only() -> None:
    rows = [*arm_records("alltoall", 100), *arm_records("hierarchical", 80)]
    old = arm_records("alltoall", 300, launches=2, session="old", torch="2.9.0")
    found = compare([*old, *rows])
    assert found.excluded == ()
    assert {f.id: f.severity for f in found.findings}["confounded-torch"] is Severity.INFO
    assert found.arms[1].launches == 5


def test_labels_are_part_of_the_contract_except_untuned() -> None:
    crowded = arm_records("hierarchical", 80, labels=("benchmark_only", "oversubscribed"))
    found = compare([*arm_records("alltoall", 100), *crowded])
    assert [difference.field for difference in found.contract.different] == ["labels"]
    untuned = arm_records("hierarchical", 80, labels=("benchmark_only", "untuned"))
    assert compare([*arm_records("alltoall", 100), *untuned]).contract.different == ()


@pytest.mark.parametrize("sides", ["one", "both"])
def test_unknown_fields_are_listed_and_may_be_attested(sides: str) -> None:
    rows = [*arm_records("alltoall", 100, ep=None), *arm_records("hierarchical", 80, ep=None if sides == "both" else 4)]
    found = compare(rows)
    assert found.contract.unknown == ("workload.ep",)
    assert "contract-unknown" in ids(found.findings)
    for name in ("ep", "workload.ep"):
        attested = compare(rows, attest={name})
        assert attested.contract.unknown == ()
        assert attested.contract.attested == ("workload.ep",)
        assert "contract-attested" in ids(attested.findings)


def test_attesting_does_not_make_different_equal() -> None:
    found = compare([*arm_records("alltoall", 100), *arm_records("hierarchical", 80, tp=4)], attest={"tp"})
    assert len(found.arms) == 1
    assert found.excluded


def test_attesting_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UsageError, match="no such field"):
        compare(arm_records("alltoall", 100), attest={"tpp"})


def test_a_field_that_only_one_side_has_is_unknown_not_equal() -> None:
    found = compare([*arm_records("alltoall", 100), *arm_records("hierarchical", 80, graphs="te")])
    assert found.contract.unknown == ("workload.graphs",)


def test_who_does_not_know_a_field_in_which_others_differ_stands_apart() -> None:
    rows = [record("a", [1.0], tp=1), record("b", [1.0], tp=4), record("c", [1.0], tp=None), record("d", [1.0], tp=1)]
    groups = sorted("".join(sorted(one.choice.dispatcher for one in group)) for group in partition(rows))
    assert groups == ["ad", "b", "c"]


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.OK])
def test_every_other_status_is_shown_and_never_ranked(status: RunStatus) -> None:
    bad = [record("deepep", launch=index, status=status, reason="why", fix="do this") for index in range(2)]
    found = compare([*arm_records("alltoall", 100), *arm_records("hierarchical", 80), *bad])
    assert {arm.label for arm in found.arms} == {"alltoall", "hierarchical"}
    assert [(one.choice.label, one.status, one.attempts, one.reason) for one in found.not_ranked] == [
        ("deepep", status, 2, "why")
    ]
    named = [finding for finding in found.findings if finding.id.endswith("-is-not-slow")]
    assert len(named) == 1
    assert named[0].severity is Severity.INFO
    assert named[0].advice == ("do this",)


def test_separate_launches_are_compared_unpaired_and_said_so() -> None:
    rows = [
        *arm_records("alltoall", 100, visits=..., session="x"),
        *arm_records("hierarchical", 80, visits=..., session="y"),
    ]
    found = compare(rows)
    interval = found.ratio("hierarchical", "alltoall")
    assert interval is not None
    assert not interval.paired
    assert "not-interleaved" in ids(found.findings)
    assert found.noise is not None
    assert found.noise.method == "launches"


def test_the_same_launch_number_in_other_processes_is_not_a_pair() -> None:
    rows = [*arm_records("alltoall", 100, session="x"), *arm_records("hierarchical", 80, session="y")]
    interval = compare(rows).ratio("hierarchical", "alltoall")
    assert interval is not None
    assert not interval.paired


def test_only_launches_that_ran_both_are_paired() -> None:
    rows = [*arm_records("alltoall", 100, launches=6), *arm_records("hierarchical", 80, launches=4)]
    interval = compare(rows).ratio("hierarchical", "alltoall")
    assert interval is not None
    assert (interval.launches, interval.paired) == (4, True)


def test_baseline_can_be_named_and_a_missing_one_is_said() -> None:
    rows = [*arm_records("alltoall", 100), *arm_records("hierarchical(chunks=4)", 80)]
    by_name, missing = compare(rows, "hierarchical"), compare(rows, "deepep")
    assert by_name.baseline is not None
    assert by_name.baseline.label == "hierarchical(chunks=4)"
    assert missing.baseline is not None
    assert missing.baseline.label == "alltoall"
    assert "baseline-missing" in ids(missing.findings)


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(UsageError, match=r"(?s)phase 'forward'.*total"):
        compare(arm_records("alltoall", 100), phase="forward")


def test_a_straggler_is_named_with_its_host() -> None:
    def on_rank_2(samples: list[float], launch: int) -> object:
        one = record("alltoall", samples, launch=launch)
        iterations = tuple(Iteration(pass_index=0, latency_us={"total": value}, slowest_rank=2) for value in samples)
        hosts = ("n1", "n1", "n2", "n2")
        return one.model_copy(update={"performance": Performance(iterations=iterations, host_of_rank=hosts)})

    found = compare([on_rank_2([1.0, 1.0], index) for index in range(2)])  # type: ignore[misc]
    message = next(finding.message for finding in found.findings if finding.id == "straggler")
    assert "rank 2 on n2" in message
    assert "straggler" not in ids(compare(arm_records("alltoall", 100)).findings)


def test_pareto_keeps_what_nothing_beats_in_both() -> None:
    rows = [
        *arm_records("alltoall", 100, memory=10),
        *arm_records("hierarchical", 80, memory=50),
        *arm_records("allgather", 120, memory=40),
    ]
    assert compare(rows).pareto == ("hierarchical", "alltoall")


def test_unknown_memory_leaves_time_alone() -> None:
    rows = [*arm_records("alltoall", 100, memory=10), *arm_records("hierarchical", 80, memory=None)]
    found = compare(rows)
    assert found.pareto == ("hierarchical",)
    assert all(arm.memory_bytes is None for arm in found.arms)


@given(points=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_pareto_against_brute_force(points: list[tuple[int, int]]) -> None:
    rows = [record(f"d{index}", [float(time)], memory=memory) for index, (time, memory) in enumerate(points)]
    expected = {
        f"d{index}"
        for index, (time, memory) in enumerate(points)
        if not any(t <= time and m <= memory and (t < time or m < memory) for t, m in points)
    }
    assert set(compare(rows, resamples=10).pareto) == expected


@given(tp=st.lists(st.sampled_from([1, 2, None]), min_size=2, max_size=6))
@settings(max_examples=40, deadline=None)
def test_no_group_mixes_two_known_values(tp: list[int | None]) -> None:
    rows = [record(f"d{index}", [1.0], tp=value) for index, value in enumerate(tp)]
    groups = partition(rows)
    assert sum(len(group) for group in groups) == len(rows)
    for group in groups:
        assert len({one.contract.workload["tp"] for one in group} - {None}) <= 1


def test_nothing_to_compare() -> None:
    found = compare([])
    assert (found.baseline, found.arms, found.ratios, found.pareto) == (None, (), (), ())


def test_noise_floor_of_the_baseline_matches_its_known_spread() -> None:
    """1 % noise, 5 launches of 12: halves of 6 differ by 1.25 x 1 % x sqrt(2/6) / sqrt(5) = 0.32 % (1 sigma)."""
    found = compare([*arm_records("alltoall", 100, noise=0.01), *arm_records("hierarchical", 80, noise=0.01)])
    assert found.noise is not None
    sigma = 1.25 * 0.01 * math.sqrt(2 / 6) / math.sqrt(5)
    assert sigma < found.noise.relative < 6 * sigma
