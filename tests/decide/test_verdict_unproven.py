"""Records that look like proof and are none: the verdict must not be a winner, whatever their numbers say."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import pytest
from decide_records import SIMPLICITY, arm_records, record

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.decide.contract_table import contract_table
from moe_dispatch.decide.verdict import Verdict, VerdictKind, decide
from moe_dispatch.evidence.record import Contract, Provenance, RunRecord, RunStatus


def judged(records: list[RunRecord], **options: object) -> Verdict:
    return decide(records, simplicity=SIMPLICITY, **options)  # type: ignore[arg-type]


def quiet(arm: str, mean_us: float, launches: int = 5, **options: object) -> list[RunRecord]:
    """Launches that do not differ among each other, so that unpaired arms can be told apart."""
    rng = np.random.default_rng(len(arm))
    samples = [mean_us * np.exp(rng.normal(0, 0.003, 12)) for _ in range(launches)]
    return [record(arm, list(one), launch=launch, **options) for launch, one in enumerate(samples)]  # type: ignore[arg-type]


def provided(records: list[RunRecord], provider: str) -> list[RunRecord]:
    provenance = Provenance(created=datetime.now(timezone.utc), tool_version="0", host="a", provider=provider)
    return [one.model_copy(update={"provenance": provenance}) for one in records]


def on_host(records: list[RunRecord], host: str) -> list[RunRecord]:
    moved = []
    for one in records:
        assert one.performance is not None
        samples = one.performance.model_copy(update={"host_of_rank": (host,) * 4})
        moved.append(one.model_copy(update={"performance": samples}))
    return moved


def ids(verdict: Verdict) -> set[str]:
    return {finding.id for finding in verdict.findings}


def test_fields_that_all_records_leave_out_are_unknown() -> None:
    bare = Contract(workload={}, measure={"visits": 4}, site={}, stack={})
    records = [
        one.model_copy(update={"contract": bare})
        for one in arm_records("alltoall", 1000) + arm_records("hierarchical", 800)
    ]
    verdict = judged(records)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    required = contract_table().required(frozenset())
    assert set(verdict.contract.unknown) == set(required)
    assert judged(records, attest=required).kind is VerdictKind.WINNER


def test_separate_jobs_on_one_host_may_win_and_on_two_hosts_not() -> None:
    base, other = quiet("alltoall", 1000), quiet("hierarchical", 800, session="s2")
    assert judged([*base, *other]).kind is VerdictKind.WINNER
    verdict = judged([*base, *on_host(other, "b")])
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "other-hosts" in ids(verdict)
    assert "hierarchical on b; alltoall on a" in verdict.reasons[0]


def test_interleaved_launches_may_use_other_hosts_each() -> None:
    records = arm_records("alltoall", 1000) + arm_records("hierarchical", 800)
    moved = [one if one.launch % 2 else on_host([one], "b")[0] for one in records]
    assert judged(moved).kind is VerdictKind.WINNER


def test_the_same_launch_in_other_processes_is_not_interleaved() -> None:
    """Resumed later: the arms share session, stage and launch, and nothing else."""
    base = [one.model_copy(update={"processes": f"first{one.launch}"}) for one in quiet("alltoall", 1000)]
    late = [one.model_copy(update={"processes": f"later{one.launch}"}) for one in quiet("hierarchical", 800)]
    verdict = judged([*base, *late])
    assert "not-interleaved" in ids(verdict)
    assert all(not arm.ratio.paired for arm in verdict.evidence if arm.ratio)
    assert "not-interleaved" not in ids(judged(quiet("alltoall", 1000) + quiet("hierarchical", 800)))


def test_one_launch_apart_on_a_resumed_session_does_not_cost_the_verdict() -> None:
    """The budget left an arm out; the session was resumed, and the first launch holds two sets of processes."""

    def named(records: list[RunRecord], first: str) -> list[RunRecord]:
        return [
            one.model_copy(update={"processes": first if one.launch == 0 else f"both{one.launch}"}) for one in records
        ]

    base, old, new = (arm_records(name, us) for name, us in (("alltoall", 1000), ("allgather", 900), ("deepep", 500)))
    again = [one.model_copy(update={"run_id": f"{one.run_id}b"}) for one in base[:1]]
    records = [*named(base, "p"), *named(old, "p"), *named(again, "q"), *named(new, "q")]
    verdict = judged(records)
    assert verdict.kind is VerdictKind.WINNER
    assert {arm.choice.label: arm.ratio.paired for arm in verdict.evidence if arm.ratio} == {
        "allgather": True,
        "deepep": True,
    }


def test_two_packages_behind_one_name_are_not_one_arm() -> None:
    arm = arm_records("deepep", 800)
    mixed = [*provided(arm[:2], "deep_ep.Buffer"), *provided(arm[2:], "uccl.Buffer")]
    verdict = judged([*arm_records("alltoall", 1000), *mixed])
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "providers-mixed" in ids(verdict)
    assert judged([*arm_records("alltoall", 1000), *provided(arm, "deep_ep.Buffer")]).kind is VerdictKind.WINNER


@pytest.mark.parametrize("threshold", [float("nan"), -0.1, 1.0])
def test_a_threshold_that_is_no_share_is_refused(threshold: float) -> None:
    with pytest.raises(UsageError, match="--threshold"):
        judged(arm_records("alltoall", 1000), threshold=threshold)


def test_a_baseline_that_nobody_tried_is_refused() -> None:
    with pytest.raises(UsageError, match="there are: alltoall"):
        judged(arm_records("alltoall", 1000), baseline="alltoal")


def training_run(arm: str, mean_us: float, launches: int, **options: object) -> list[RunRecord]:
    shared = {"stage": "training", "level": "step", "visits": ..., "pp": 8, "ep": 64, "mbs": 1, "gbs": 2048}
    return quiet(arm, mean_us, launches, **{**shared, **options})


def test_a_published_claim_from_confounded_single_runs_is_refused() -> None:
    """TP and routing differ, one run each, a third ran out of memory, a fourth is not installed."""
    records = [
        *training_run("deepep", 318, 1, tp=1),
        *training_run("hybridep", 251, 1, tp=4, routing="natural"),
        *(one.model_copy(update={"stage": "training"}) for one in [record("hybridep", status=RunStatus.OOM)]),
        record("ncclep", stage="gate", status=RunStatus.UNAVAILABLE),
    ]
    verdict = judged(records)
    severities = {finding.id: finding.severity for finding in verdict.findings}
    assert verdict.kind is VerdictKind.NOT_COMPARABLE
    assert verdict.recommended is None
    assert severities["confounded-tp"] is Severity.ERROR
    assert severities["confounded-routing"] is Severity.ERROR
    assert severities["single-run"] is Severity.WARNING
    assert severities["arm-oom-is-not-slow"] is Severity.INFO
    assert severities["arm-missing-is-not-slow"] is Severity.INFO


def test_the_same_claim_with_equal_settings_is_comparable() -> None:
    verdict = judged([*training_run("deepep", 318, 3, tp=1), *training_run("hybridep", 251, 3, tp=1)])
    assert verdict.contract.different == ()
    assert len(verdict.evidence) == 2
    assert ids(verdict) == {"few-launches", "not-interleaved"}  # a winner would take five


def test_a_valid_verdict_beside_a_refused_arm_is_not_clean() -> None:
    compared = [*arm_records("alltoall", 1000), *arm_records("hierarchical", 800)]
    assert judged(compared).clean
    verdict = judged([*compared, *arm_records("allgather", 500, tp=4)])
    assert verdict.kind is VerdictKind.WINNER
    assert not verdict.clean
