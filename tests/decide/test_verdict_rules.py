"""Each rule of the verdict, its contrast, and properties over arms and sizes of the difference."""

from __future__ import annotations

import pytest
from decide_records import SIMPLICITY, arm_records, record
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.decide.verdict import Verdict, VerdictKind, decide
from moe_dispatch.evidence.record import RunRecord, RunStatus

FAST, SLOW = 80.0, 100.0
QUICK = 300
"""Resamples where many verdicts are made; the differences tested are many intervals wide."""


def verdict(*groups: list[RunRecord], **options: object) -> Verdict:
    records = [one for group in groups for one in group]
    return decide(records, simplicity=SIMPLICITY, **options)  # type: ignore[arg-type]


def caps(found: Verdict) -> set[str]:
    return {finding.id for finding in found.findings if finding.source == "verdict"}


def test_a_clear_difference_in_five_launches_wins() -> None:
    found = verdict(arm_records("alltoall", SLOW), arm_records("hierarchical", FAST))
    assert found.kind is VerdictKind.WINNER
    assert found.winner is not None
    assert found.winner.label == "hierarchical"
    assert found.recommended == found.winner
    assert found.reasons == ()
    hierarchical, alltoall = found.evidence
    assert (hierarchical.standing, alltoall.standing) == ("fastest", "slower")
    assert alltoall.ratio is None
    assert hierarchical.ratio is not None
    assert hierarchical.ratio.low < 0.8 < hierarchical.ratio.high
    assert (hierarchical.launches, hierarchical.iterations) == (5, 60)


def test_the_statement_names_where_it_holds() -> None:
    labels = ("benchmark_only", "oversubscribed", "scaled_tokens")
    found = verdict(arm_records("alltoall", SLOW, labels=labels), arm_records("hierarchical", FAST, labels=labels))
    for part in ("4 ranks", "1 node", "Test CPU", "gloo", "tiny-moe", "256 tokens per rank", "force_balanced", *labels):
        assert part in found.statement
    assert "% less time" in found.statement
    assert found.measured_on["device_name"] == "Test CPU"
    assert found.measured_on["labels"] == sorted(labels)


def test_the_baseline_can_win() -> None:
    found = verdict(arm_records("alltoall", FAST), arm_records("hierarchical", SLOW))
    assert found.kind is VerdictKind.WINNER
    assert found.winner is not None
    assert found.winner.label == "alltoall"


def test_below_the_threshold_it_is_a_tie_and_the_simplest_is_recommended() -> None:
    found = verdict(arm_records("alltoall", 100.0, noise=0.0005), arm_records("hierarchical", 99.0, noise=0.0005))
    assert found.kind is VerdictKind.TIE
    assert found.winner is None
    assert found.recommended is not None
    assert found.recommended.label == "alltoall"
    assert found.margin == found.threshold
    below = verdict(
        arm_records("alltoall", 100.0, noise=0.0005), arm_records("hierarchical", 99.0, noise=0.0005), threshold=0.005
    )
    assert below.kind is VerdictKind.WINNER


def test_a_difference_inside_the_noise_floor_is_a_tie() -> None:
    """Five percent, beyond the threshold, but the baseline's own visits differ by six."""
    baseline = [
        record("alltoall", [100.0 * (1.06 if visit % 2 else 1.0) for visit in range(4) for _ in range(3)], launch=index)
        for index in range(5)
    ]
    fast = [record("hierarchical", [97.0] * 12, launch=index) for index in range(5)]
    found = verdict(baseline, fast)
    assert found.kind is VerdictKind.TIE
    assert found.noise_floor is not None
    assert found.margin == found.noise_floor.relative > 0.05
    assert "baseline-drifts" in caps(found)


@pytest.mark.parametrize("launches", [1, 4])
def test_fewer_than_five_launches_is_inconclusive(launches: int) -> None:
    found = verdict(arm_records("alltoall", SLOW, launches), arm_records("hierarchical", FAST, launches))
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.winner is None
    assert found.recommended is not None
    assert found.recommended.label == "alltoall"
    assert "few-launches" in caps(found)
    assert any(f"{5 - launches} more launch" in change for change in found.would_change)
    assert "No statement about the speed" in found.statement


def test_one_short_arm_is_enough_to_hold_back() -> None:
    found = verdict(arm_records("alltoall", SLOW), arm_records("hierarchical", FAST, launches=4))
    assert found.kind is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize("status", [RunStatus.UNAVAILABLE, RunStatus.OOM, RunStatus.TIMEOUT, RunStatus.INCORRECT])
def test_only_one_working_arm(status: RunStatus) -> None:
    found = verdict(arm_records("alltoall", SLOW), [record("deepep", status=status, reason="broken", fix="repair it")])
    assert found.kind is VerdictKind.ONLY_AVAILABLE
    assert found.winner is None
    assert found.recommended is not None
    assert found.recommended.label == "alltoall"
    assert f"deepep ({status.value})" in found.statement
    assert "less time" not in found.statement
    assert any("repair it" in change for change in found.would_change)


def test_an_arm_that_was_just_not_repeated_is_not_unavailable() -> None:
    screen = [record(name, [10.0] * 4, stage="screen", level="exchange") for name in ("alltoall", "hierarchical")]
    found = verdict(screen, arm_records("alltoall", SLOW))
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.stage == "decide"
    assert "arms-not-repeated" in caps(found)
    assert found.recommended is not None
    failed = [record("hierarchical", status=RunStatus.OOM, reason="too large")]
    assert verdict(screen, arm_records("alltoall", SLOW), failed).kind is VerdictKind.ONLY_AVAILABLE


@pytest.mark.parametrize("status", [RunStatus.INTERRUPTED, RunStatus.TRUNCATED, RunStatus.UNPROVEN])
def test_an_unfinished_arm_is_not_unavailable(status: RunStatus) -> None:
    found = verdict(arm_records("alltoall", SLOW), [record("hierarchical", status=status)])
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert "arms-not-repeated" in caps(found)


def test_nothing_worked() -> None:
    found = verdict([record("alltoall", status=RunStatus.CRASHED), record("deepep", status=RunStatus.UNAVAILABLE)])
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.recommended is None
    assert "nothing-measured" in caps(found)


def test_unknown_field_caps_and_attesting_lifts() -> None:
    rows = [*arm_records("alltoall", SLOW, ep=None), *arm_records("hierarchical", FAST)]
    found = verdict(rows)
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.contract.unknown == ("workload.ep",)
    assert any("--attest" in change for change in found.would_change)
    attested = verdict(rows, attest={"ep"})
    assert attested.kind is VerdictKind.WINNER
    assert attested.contract.attested == ("workload.ep",)


def test_a_different_field_is_not_comparable() -> None:
    found = verdict(arm_records("alltoall", SLOW), arm_records("hierarchical", FAST, tp=4))
    assert found.kind is VerdictKind.NOT_COMPARABLE
    assert found.recommended is None
    assert "workload.tp" in found.statement
    assert any(finding.severity is Severity.ERROR for finding in found.findings)


def test_a_flipped_sign_on_skew_is_inconclusive() -> None:
    main = [*arm_records("alltoall", SLOW), *arm_records("hierarchical", FAST)]
    flipped = verdict(
        main, arm_records("alltoall", FAST, routing="zipf:1.0"), arm_records("hierarchical", SLOW, routing="zipf:1.0")
    )
    assert flipped.kind is VerdictKind.INCONCLUSIVE
    assert "skew-flips" in caps(flipped)
    assert flipped.skew[0].flipped
    assert flipped.skew[0].interval.ratio == pytest.approx(1.25, rel=0.01)
    same = verdict(
        main, arm_records("alltoall", SLOW, routing="zipf:1.0"), arm_records("hierarchical", 97.0, routing="zipf:1.0")
    )
    assert same.kind is VerdictKind.WINNER
    assert not same.skew[0].flipped
    assert "skew-not-measured" not in caps(same)
    assert "skew-not-measured" in caps(verdict(main))


def test_a_tie_on_skew_is_no_flip() -> None:
    main = [*arm_records("alltoall", SLOW), *arm_records("hierarchical", FAST)]
    skew = [
        *arm_records("alltoall", 100.0, routing="zipf:1.0"),
        *arm_records("hierarchical", 100.1, routing="zipf:1.0"),
    ]
    assert verdict(main, skew).kind is VerdictKind.WINNER


def test_skew_may_be_a_stage_of_its_own() -> None:
    main = [*arm_records("alltoall", SLOW), *arm_records("hierarchical", FAST)]
    options = {"routing": "zipf:1.0", "stage": "skew"}
    found = verdict(main, arm_records("alltoall", FAST, **options), arm_records("hierarchical", SLOW, **options))
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.skew[0].against == "alltoall"


def test_knobs_tuned_on_the_judging_runs_are_inconclusive_until_confirmed() -> None:
    screen = [
        *arm_records("alltoall", SLOW, stage="screen"),
        *arm_records("hierarchical(chunks=4)", FAST, stage="screen"),
        *arm_records("hierarchical(chunks=8)", 90.0, stage="screen"),
    ]
    found = verdict(screen)
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert "tuned-not-confirmed" in caps(found)
    confirmed = verdict(screen, arm_records("alltoall", SLOW), arm_records("hierarchical(chunks=4)", FAST))
    assert confirmed.kind is VerdictKind.WINNER
    assert confirmed.stage == "decide"
    assert confirmed.evidence[0].launches == 5


def test_a_screen_without_tuning_may_decide() -> None:
    found = verdict(arm_records("alltoall", SLOW, stage="screen"), arm_records("hierarchical", FAST, stage="screen"))
    assert found.kind is VerdictKind.WINNER


def test_the_layer_decides_where_both_levels_were_measured() -> None:
    """The exchange favours hierarchical, the layer does not."""
    found = verdict(
        arm_records("alltoall", SLOW, level="exchange"),
        arm_records("hierarchical", 50.0, level="exchange"),
        arm_records("alltoall", 100.0),
        arm_records("hierarchical", 100.0),
    )
    assert found.kind is VerdictKind.TIE
    assert found.measured_on["level"] == "layer"


def test_an_arm_that_sometimes_crashes_is_not_proven() -> None:
    crashed = [record("hierarchical", launch=9, status=RunStatus.CRASHED, reason="rank 2 was killed")]
    found = verdict(arm_records("alltoall", SLOW), arm_records("hierarchical", FAST), crashed)
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert "arm-unstable" in caps(found)
    assert found.recommended is not None
    assert found.recommended.label == "alltoall"
    interrupted = [record("hierarchical", launch=9, status=RunStatus.INTERRUPTED)]
    assert verdict(arm_records("alltoall", SLOW), arm_records("hierarchical", FAST), interrupted).kind is (
        VerdictKind.WINNER
    )


def test_a_baseline_without_repeats_gives_no_winner() -> None:
    rows = [
        record(name, [time] * 3, launch=index)
        for name, time in (("alltoall", 100.0), ("hierarchical", 80.0))
        for index in range(5)
    ]
    single = [
        one.model_copy(
            update={
                "performance": one.performance.model_copy(
                    update={
                        "iterations": tuple(i.model_copy(update={"pass_index": 0}) for i in one.performance.iterations)
                    }
                )
            }
        )
        for one in rows
        if one.performance
    ]
    found = verdict(single)
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert "noise-floor-unknown" in caps(found)


def test_two_fast_arms_tie_above_a_slow_baseline() -> None:
    found = verdict(arm_records("alltoall", 100.0), arm_records("hierarchical", 80.0), arm_records("hybridep", 80.0))
    assert found.kind is VerdictKind.TIE
    assert found.recommended is not None
    assert found.recommended.label == "hierarchical"
    assert {one.choice.label: one.standing for one in found.evidence}["alltoall"] == "slower"


def test_untuned_is_carried_and_named() -> None:
    found = verdict(arm_records("alltoall", FAST), arm_records("deepep", SLOW, labels=("benchmark_only", "untuned")))
    assert found.kind is VerdictKind.WINNER
    assert "untuned" in found.statement
    assert any("tuning deepep" in change for change in found.would_change)


def test_pareto_is_in_the_verdict() -> None:
    found = verdict(arm_records("alltoall", SLOW, memory=10), arm_records("hierarchical", FAST, memory=99))
    assert found.pareto == ("hierarchical", "alltoall")


def test_routing_can_be_asked_for_and_must_exist() -> None:
    rows = [
        *arm_records("alltoall", SLOW),
        *arm_records("hierarchical", FAST),
        *arm_records("alltoall", FAST, routing="zipf:1.0"),
        *arm_records("hierarchical", SLOW, routing="zipf:1.0"),
    ]
    found = verdict(rows, routing="zipf:1.0")
    assert found.evidence[0].choice.label == "alltoall"
    with pytest.raises(UsageError, match="was not measured"):
        verdict(rows, routing="zipf:2.0")


def test_a_routing_that_only_failed_leaves_nothing_to_decide() -> None:
    skewed = [
        *arm_records("alltoall", FAST, routing="zipf:1.0"),
        *arm_records("hierarchical", SLOW, routing="zipf:1.0"),
    ]
    failed = [record("alltoall", status=RunStatus.OOM, routing="force_balanced", reason="too large")]
    found = verdict(skewed, failed, routing="force_balanced")
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.recommended is None
    assert "nothing-measured" in caps(found)


def test_verdict_round_trips_through_json() -> None:
    found = verdict(arm_records("alltoall", SLOW), arm_records("hierarchical", FAST))
    assert Verdict.model_validate_json(found.model_dump_json()) == found


@given(seed=st.integers(0, 50), noise=st.sampled_from([0.001, 0.01, 0.05]))
@settings(max_examples=25, deadline=None)
def test_a_against_a_never_wins(seed: int, noise: float) -> None:
    """Two names for one dispatcher: 26 seeds x 3 noise levels, none may be called faster."""
    found = verdict(
        arm_records("alltoall", 100.0, noise=noise),
        arm_records(f"copy{seed}", 100.0, noise=noise),
        resamples=QUICK,
    )
    assert found.kind is VerdictKind.TIE
    assert found.recommended is not None
    assert found.recommended.dispatcher == "alltoall"


@given(factor=st.floats(0.5, 2.0))
@settings(max_examples=25, deadline=None)
def test_names_do_not_matter(factor: float) -> None:
    """Swap which measurements carry which name: the same kind, and the other arm wins."""
    quick, slow = arm_records("x", 100.0), arm_records("y", 100.0 * factor)
    swapped = [
        one.model_copy(update={"choice": other.choice})
        for group, names in ((quick, slow), (slow, quick))
        for one, other in zip(group, names, strict=True)
    ]
    equal = {"x": 0, "y": 0}
    first = decide([*quick, *slow], simplicity=equal, baseline="x", resamples=QUICK)
    second = decide(swapped, simplicity=equal, baseline="y", resamples=QUICK)
    assert first.kind is second.kind
    if first.winner is not None and second.winner is not None:
        assert first.winner.label != second.winner.label


@given(steps=st.lists(st.floats(0.5, 1.0), min_size=2, max_size=4))
@settings(max_examples=25, deadline=None)
def test_a_winner_that_gets_faster_still_wins(steps: list[float]) -> None:
    base = arm_records("alltoall", 100.0)
    won = False
    for factor in sorted(steps, reverse=True):
        found = verdict(base, arm_records("hierarchical", 100.0 * factor), resamples=QUICK)
        now = found.winner is not None and found.winner.label == "hierarchical"
        assert now or not won
        won = now
    assert won == (now and found.evidence[0].choice.label == "hierarchical")
