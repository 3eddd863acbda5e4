"""Training runs: acceptance, mean beside median, proof of the dispatcher, copies, and public reports of misreadings.

The reports are those of NVIDIA-NeMo/Megatron-Bridge, NVIDIA/Megatron-LM and marin-community/marin that the tests name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decide_records import arm_records
from training_records import ids, judged, run, runs

from moe_dispatch.core.finding import Severity
from moe_dispatch.decide.acceptance import AcceptanceLevel
from moe_dispatch.decide.verdict import Verdict, VerdictKind
from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.evidence.training import TrainingMetrics


def severity(verdict: Verdict, finding: str) -> Severity:
    return next(one.severity for one in verdict.findings if one.id == finding)


def test_five_separate_launches_an_arm_win_with_everything_known() -> None:
    verdict = judged(runs("alltoall", 100), runs("hybridep", 95))
    assert verdict.kind is VerdictKind.WINNER
    assert verdict.winner is not None
    assert verdict.winner.label == "hybridep"
    assert verdict.noise_floor is not None
    assert verdict.noise_floor.method == "launches"
    assert verdict.attribution.to == "dispatcher"


@pytest.mark.parametrize(
    ("steps", "warmup", "routing", "level"),
    [
        (19, 10, "natural", AcceptanceLevel.SCREEN),
        (20, 10, "natural", AcceptanceLevel.DECISION),
        (39, 10, "natural", AcceptanceLevel.DECISION),
        (40, 10, "natural", AcceptanceLevel.ACCEPTED),
        (40, 10, "force_balanced", AcceptanceLevel.DECISION),
        (10, 60, "natural", AcceptanceLevel.SCREEN),
    ],
)
def test_acceptance_by_steady_steps_steps_run_and_routing(
    steps: int, warmup: int, routing: str, level: AcceptanceLevel
) -> None:
    options: dict[str, Any] = {"steps": steps, "warmup": warmup, "workload__routing": routing}
    verdict = judged(runs("alltoall", 100, **options), runs("hybridep", 90, **options))
    assert verdict.acceptance is not None
    assert verdict.acceptance.level is level
    assert f"Acceptance: {level.value} ({steps} steady of {steps + warmup} steps" in verdict.statement
    assert ("acceptance-screen" in ids(verdict)) == (level is AcceptanceLevel.SCREEN)
    assert bool(verdict.acceptance.missing) == (level is not AcceptanceLevel.ACCEPTED)


def test_the_weakest_launch_decides_the_acceptance() -> None:
    verdict = judged(runs("alltoall", 100), [*runs("hybridep", 90, launches=5), *runs("hybridep", 90, 1, steps=12)])
    assert verdict.acceptance is not None
    assert verdict.acceptance.level is AcceptanceLevel.SCREEN


def test_slow_steps_that_a_median_passes_over_count_in_the_mean() -> None:
    """49.17 s among steps of 5.2 s (Megatron-Bridge#1499): 5 % by the median, and the whole gain lost by the mean."""
    rare = [run("hybridep", [*(95.0 + launch / 10 + i / 100 for i in range(38)), 400.0, 400.0]) for launch in range(5)]
    verdict = judged(runs("alltoall", 100), rare)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "mean-contradicts" in ids(verdict)
    assert verdict.winner is None


def test_an_outlier_that_does_not_outweigh_the_gain_stays_in_and_the_arm_wins() -> None:
    rare = [run("hybridep", [*(80.0 + launch / 10 + i / 100 for i in range(39)), 300.0]) for launch in range(5)]
    verdict = judged(runs("alltoall", 100), rare)
    assert verdict.kind is VerdictKind.WINNER
    assert verdict.evidence[0].iterations == 200


def test_a_tie_that_could_hide_a_large_difference_is_none() -> None:
    noisy = {"between": 0.35, "within": 0.3}
    verdict = judged(runs("alltoall", 100, **noisy), runs("hybridep", 100, **noisy))
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "too-noisy" in ids(verdict)
    assert judged(runs("alltoall", 100), runs("hybridep", 100.2)).kind is VerdictKind.TIE


def test_an_arm_that_another_dispatcher_ran_for_has_no_timing() -> None:
    """deepep on GB200 becomes alltoall with one warning (Megatron-Bridge#5992, #2288; Megatron-LM fork #182)."""
    verdict = judged(runs("alltoall", 100), runs("deepep", 70, effective="alltoall"))
    assert verdict.kind is VerdictKind.ONLY_AVAILABLE
    assert severity(verdict, "requested-not-effective") is Severity.ERROR
    assert "deepep (fell back)" in verdict.statement
    assert not verdict.clean


@pytest.mark.parametrize("proof", ["none", "configured"])
def test_a_configuration_alone_does_not_prove_that_the_backend_ran(proof: str) -> None:
    """A checkpoint or recipe may name a backend that is not built (Megatron-Bridge#5543)."""
    verdict = judged(runs("alltoall", 100), runs("deepep", 70, proof=proof))
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "activation-unproven" in ids(verdict)
    assert [one.choice.label for one in verdict.evidence] == ["alltoall"]


def renamed(records: list[RunRecord], **changes: Any) -> list[RunRecord]:
    return [one.model_copy(update={"run_id": f"{one.run_id}x", "processes": "copy", **changes}) for one in records]


def test_a_run_given_twice_is_one_launch() -> None:
    base, other = runs("alltoall", 100, launches=3), runs("hybridep", 80)
    verdict = judged(base, renamed(base), other)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert {"duplicate-run", "few-launches"} <= ids(verdict)
    assert {one.choice.label: one.launches for one in verdict.evidence}["alltoall"] == 3


def test_one_run_under_two_names_is_no_comparison() -> None:
    base = runs("alltoall", 100)
    twins = [
        run("hybridep", [i.latency_us["total"] / 1e3 for i in one.performance.iterations])
        for one in base
        if one.performance
    ]
    verdict = judged(base, twins)
    assert verdict.evidence == ()
    assert severity(verdict, "one-run-two-arms") is Severity.ERROR


def test_two_runs_of_one_arm_that_differ_are_refused_by_the_field() -> None:
    """Forced and natural routing are different workloads (Megatron-Bridge#4679)."""
    verdict = judged(
        runs("hybridep", 100, workload__routing="natural"), runs("hybridep", 80, workload__routing="force_balanced")
    )
    assert verdict.kind is VerdictKind.NOT_COMPARABLE
    assert "confounded-routing" in ids(verdict)


def test_training_runs_decide_over_the_layer_and_the_exchange() -> None:
    """The microbenchmark favoured deepep, the full layer another (marin#3666)."""
    layer = [*arm_records("alltoall", 100), *arm_records("hybridep", 50)]
    verdict = judged(layer, runs("alltoall", 90), runs("hybridep", 100))
    assert verdict.winner is not None
    assert verdict.winner.label == "alltoall"
    assert verdict.measured_on["level"] == "training_step"


def test_logged_tflops_decide_nothing() -> None:
    """Zero, doubled or inflated TFLOP/s (Megatron-Bridge#1499, #2898, #4508): the step times stand."""

    def logging(records: list[RunRecord], tflops: float) -> list[RunRecord]:
        metrics = TrainingMetrics(mean_ms=1, median_ms=1, spread=0, tflops_per_gpu_logged=tflops)
        return [
            one.model_copy(update={"training": one.training.model_copy(update={"metrics": metrics})})
            for one in records
            if one.training
        ]

    verdict = judged(logging(runs("alltoall", 100), 900.0), logging(runs("hybridep", 80), 0.0))
    assert verdict.winner is not None
    assert verdict.winner.label == "hybridep"


def test_an_arm_that_drops_tokens_is_another_workload() -> None:
    """Capacity factor 1.0 looked faster and dropped 9.7 % of the tokens (marin#7279)."""
    verdict = judged(runs("alltoall", 100, workload__drop_rate=0.0), runs("deepep", 80, workload__drop_rate=0.097))
    assert verdict.kind is VerdictKind.NOT_COMPARABLE
    assert "confounded-drop-rate" in ids(verdict)


def test_two_draws_of_one_arm_show_the_noise_that_a_winner_must_beat() -> None:
    """The same arm gave 18.38 % and 20.33 % MFU (marin#7279): 5 % of a difference drowns in that."""
    spread = {"between": 0.07}
    verdict = judged(runs("alltoall", 100, **spread), runs("deepep", 95, **spread))
    assert verdict.kind in (VerdictKind.TIE, VerdictKind.INCONCLUSIVE)
    assert verdict.margin > 0.05


def test_a_window_with_warm_up_in_it_is_refused() -> None:
    """First steps of 24.8 s and 0.3 s before 43 ms (Megatron-LM#4632)."""
    verdict = judged(runs("alltoall", 300, measure__window="all lines"), runs("hybridep", 43, measure__window="steady"))
    assert verdict.kind is VerdictKind.NOT_COMPARABLE
    assert "confounded-window" in ids(verdict)


def test_missing_packages_are_no_throughput() -> None:
    """Megatron-Bridge#3867."""
    missing = run("ncclep", status=RunStatus.UNAVAILABLE, reason="TransformerEngine NCCL EP is unavailable")
    verdict = judged(runs("alltoall", 100), runs("hybridep", 80), missing)
    assert verdict.kind is VerdictKind.WINNER
    assert "Not ranked: ncclep (unavailable)" in verdict.statement
    assert "Environment limitation of ncclep" in verdict.statement


def test_a_regression_is_not_blamed_on_a_flag_that_did_not_change() -> None:
    """Megatron-Bridge#5129: the stack changed, the overlap flag did not."""
    overlap = {"workload__overlap_moe_expert_parallel_comm": True}
    verdict = judged(
        runs("hybridep", 100, stack__torch="2.10", **overlap),
        runs("hybridep", 120, seed=1, stack__torch="2.11", **overlap),
        vary="stack",
    )
    assert verdict.attribution.to == "stack"
    assert verdict.attribution.changed == ("stack.torch",)


def test_an_arm_that_did_not_fit_is_said_with_its_settings_and_not_slow() -> None:
    """hybridep needed TP 4 to fit (Megatron-Bridge#1731): at TP 1 it is out of memory, at TP 4 another workload."""
    verdict = judged(
        runs("deepep", 100, 1, workload__tp=1),
        runs("hybridep", 126, 1, workload__tp=4),
        run("hybridep", status=RunStatus.OOM, workload__tp=1),
    )
    assert verdict.kind is VerdictKind.NOT_COMPARABLE
    assert "hybridep did not fit in memory with workload.tp 1." in verdict.statement
    assert "slower" not in verdict.statement


@pytest.mark.parametrize("cause", ["recompute-dispatch-layout-drift", "recompute-router-flip"])
def test_a_recompute_mismatch_is_a_crash_with_its_class_and_not_memory(cause: str) -> None:
    """Automodel#3325, #3743: the arm crashed in recompute; alltoall with recompute off is no contrast for it."""
    crashed = run("hybridep", status=RunStatus.CRASHED, reason=f"{cause}: saved [1208, 2048], recomputed [1143, 2048]")
    verdict = judged(runs("alltoall", 100, workload__recompute_granularity="full"), crashed)
    assert verdict.kind is VerdictKind.ONLY_AVAILABLE
    assert cause in next(one.message for one in verdict.findings if one.id == "arm-crashed-is-not-slow")
    assert "memory" not in verdict.statement
    without = runs("hybridep", 80, workload__recompute_granularity="none")
    retried = judged(runs("alltoall", 100, workload__recompute_granularity="full"), crashed, without)
    assert retried.kind is VerdictKind.NOT_COMPARABLE
    assert "confounded-recompute-granularity" in ids(retried)


def test_memory_stands_beside_time() -> None:
    verdict = judged(runs("alltoall", 100, memory=2**30), runs("hybridep", 80, memory=3 * 2**30))
    assert verdict.pareto == ("hybridep", "alltoall")
    assert "Memory (allocated peak): hybridep 3.00 GiB; alltoall 1.00 GiB" in verdict.statement
    leaner = judged(runs("alltoall", 100, memory=2**30), runs("hybridep", 80, memory=2**20))
    assert leaner.pareto == ("hybridep",)
    assert "Memory" not in leaner.statement


def test_unknown_hosts_of_a_log_are_not_those_of_the_reader() -> None:
    verdict = judged(runs("alltoall", 100, site__hosts=None), runs("hybridep", 80, site__hosts=["n1", "n2"]))
    assert "other-hosts" in ids(verdict)


def test_the_reference_case_of_may_2026() -> None:
    """Qwen3-30B-A3B on 16 H100: alltoall ran five steps, deepep and hybridep lacked their packages."""
    rng = np.random.default_rng(0)
    shared = {
        "workload__model": "qwen3-30b-a3b",
        "site__ranks": 16,
        "site__device_name": "H100",
        "workload__permute_fusion": False,
    }
    records = [
        run("alltoall", 45_650.0 * np.exp(rng.normal(0, 0.001, 4)), warmup=1, memory=61_351_000_000, **shared),
        *(
            run(name, status=RunStatus.UNAVAILABLE, reason=f"{name} is not installed", **shared)
            for name in ("deepep", "hybridep")
        ),
    ]
    verdict = judged(records)
    assert verdict.kind is VerdictKind.ONLY_AVAILABLE
    assert verdict.winner is None
    assert verdict.recommended is not None
    assert verdict.recommended.label == "alltoall"
    assert verdict.statement.count("Environment limitation of") == 2
    assert sum(one.id == "arm-missing-is-not-slow" for one in verdict.findings) == 2
    assert verdict.acceptance is not None
    assert verdict.acceptance.level is AcceptanceLevel.SCREEN
    assert "less time" not in verdict.statement
