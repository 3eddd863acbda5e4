"""A published claim ("hybridep is 21 percent slower than deepep") from arms that were not comparable, and its contrast.

Sources: NVIDIA-NeMo/Megatron-Bridge#1731, #4679, #3867; marin-community/marin#7279. Step times are derived from the
claimed throughput: time is proportional to 1 / (TFLOP/s).
"""

from __future__ import annotations

from typing import Any

from decide_records import SIMPLICITY, record

from moe_dispatch.core.finding import Severity
from moe_dispatch.decide.verdict import Verdict, VerdictKind, decide
from moe_dispatch.evidence.record import RunRecord, RunStatus

SETUP: dict[str, Any] = {"pp": 8, "vpp": 4, "ep": 64, "mbs": 1, "gbs": 2048, "drop_rate": 0.0, "visits": ...}
TFLOPS = {"deepep": 318.0, "hybridep": 251.0}


def run(dispatcher: str, launch: int = 0, spread: float = 0.0, **fields: Any) -> RunRecord:
    step_us = 1e9 / TFLOPS[dispatcher] * (1 + spread)
    samples = [step_us * (1 + 0.0001 * index) for index in range(4)]
    return record(dispatcher, samples, launch=launch, session=f"{dispatcher}{launch}", **SETUP | fields)


def failed(dispatcher: str, status: RunStatus, reason: str) -> RunRecord:
    return record(dispatcher, status=status, reason=reason, routing="forced-balanced", tp=1, **SETUP)


FAILED = [
    failed("hybridep", RunStatus.OOM, "CUDA out of memory at TP 1"),
    failed("ncclep", RunStatus.UNAVAILABLE, "the package is not installed"),
]


def reach(*records: RunRecord) -> Verdict:
    return decide([*records, *FAILED], simplicity=SIMPLICITY)


def test_confounded_arms_allow_no_speed_statement() -> None:
    found = reach(run("deepep", tp=1, routing="forced-balanced"), run("hybridep", tp=4, routing="natural"))
    assert found.kind is VerdictKind.NOT_COMPARABLE
    assert found.recommended is None
    severities = {finding.id: finding.severity for finding in found.findings}
    assert severities["confounded-tp"] is Severity.ERROR
    assert severities["confounded-routing"] is Severity.ERROR
    assert severities["single-run"] is Severity.WARNING
    assert severities["arm-oom-is-not-slow"] is Severity.INFO
    assert severities["arm-missing-is-not-slow"] is Severity.INFO
    routing = next(finding for finding in found.findings if finding.id == "confounded-routing")
    assert "different workloads" in routing.why
    assert found.statement.startswith("No statement about the speed of these dispatchers")
    assert "hybridep (oom)" in found.statement
    assert "21" not in found.statement
    assert "slower" not in found.statement
    assert any("workload.tp" in change and "workload.routing" in change for change in found.would_change)


def test_matched_arms_are_comparable_but_three_runs_are_few() -> None:
    runs = [
        run(name, launch, spread, tp=1, routing="forced-balanced")
        for name in TFLOPS
        for launch, spread in enumerate((-0.005, 0.0, 0.005))
    ]
    found = reach(*runs)
    assert {arm.choice.label for arm in found.evidence} == {"deepep", "hybridep"}
    assert not any(finding.severity is Severity.ERROR for finding in found.findings)
    assert found.reasons == ("fewer than 5 launches of an arm (deepep 3, hybridep 3)",)


def test_matched_arms_with_five_runs_win_were_it_not_for_the_crash() -> None:
    """The oom at TP 1 happened in the same stage, so hybridep is unstable there, but deepep is the winner."""
    runs = [
        run(name, launch, spread, tp=1, routing="forced-balanced")
        for name in TFLOPS
        for launch, spread in enumerate((-0.005, -0.002, 0.0, 0.002, 0.005, 0.001))
    ]
    found = reach(*runs)
    assert found.kind is VerdictKind.WINNER
    assert found.winner is not None
    assert found.winner.label == "deepep"
    deepep, hybridep = found.evidence
    assert hybridep.ratio is None or deepep.ratio is None
    ratio = deepep.ratio or (hybridep.ratio and hybridep.ratio.inverse)
    assert ratio is not None
    assert ratio.low < 251.0 / 318.0 * 1.001
    assert ratio.high > 251.0 / 318.0 * 0.999
