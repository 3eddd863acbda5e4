"""What may be said of ingested runs: real logs against each other and altered copies, and the published case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ingest_logs import bridge, iteration, real, real_text, record, written

from moe_dispatch.decide.verdict import Verdict, VerdictKind, decide
from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.flow.judge import simplicity

FORCED = "  moe_router_force_load_balancing ................. True"


def verdict(records: Sequence[RunRecord]) -> Verdict:
    return decide(records, simplicity=simplicity())


def different(one: Verdict) -> set[str]:
    return {difference.field for difference in one.contract.different}


def test_one_launch_each_is_inconclusive_and_lists_what_no_log_says() -> None:
    one = verdict([record(real("alltoall-a")), record(real("hybridep-a"))])
    assert one.kind is VerdictKind.INCONCLUSIVE
    assert one.winner is None
    assert not one.contract.different
    assert {"site.device_name", "site.cpu_affinity", "stack.container", "stack.nccl"} <= set(one.contract.unknown)
    assert any("launches" in reason for reason in one.reasons)


@pytest.mark.parametrize(
    ("line", "changed", "field"),
    [
        (FORCED, FORCED.replace("True", "False"), "workload.routing"),
        (
            "  tensor_model_parallel_size ...................... 1",
            "  tensor_model_parallel_size ...................... 2",
            "workload.tp",
        ),
        (
            "  moe_expert_capacity_factor ...................... None",
            "  moe_expert_capacity_factor ...................... 1.0",
            "workload.capacity_factor",
        ),
        (
            "  overlap_moe_expert_parallel_comm ................ False",
            "  overlap_moe_expert_parallel_comm ................ True",
            "workload.overlap_moe_expert_parallel_comm",
        ),
    ],
)
def test_a_copy_with_one_other_setting_is_refused_by_its_name(
    tmp_path: Path, line: str, changed: str, field: str
) -> None:
    text = real_text("hybridep-a")
    assert line in text
    copy = record(written(tmp_path, text.replace(line, changed)))
    assert copy.status is RunStatus.OK
    one = verdict([record(real("alltoall-a")), copy])
    assert one.kind is VerdictKind.NOT_COMPARABLE
    assert field in different(one)
    assert one.winner is None


def test_failed_arms_are_shown_and_never_ranked() -> None:
    records = [record(real(name)) for name in ("alltoall-a", "deepep-missing", "hybridep-truncated")]
    one = verdict(records)
    assert [arm.choice.label for arm in one.evidence] == ["alltoall"]
    assert {status.status for status in one.not_ranked} == {RunStatus.UNAVAILABLE, RunStatus.TRUNCATED}


def test_confounded_arms_an_oom_and_a_missing_package_make_no_claim(tmp_path: Path) -> None:
    layout = {"expert_model_parallel_size": 8, "pipeline_model_parallel_size": 1, "moe_token_dispatcher_type": "flex"}
    forced = {"moe_router_force_load_balancing": True}
    first = written(tmp_path, bridge(tensor_model_parallel_size=1, **layout, **forced), "a.log")
    second = bridge(tensor_model_parallel_size=4, moe_flex_dispatcher_backend="hybridep", **layout)
    third = bridge(
        range(1, 2), tensor_model_parallel_size=1, moe_flex_dispatcher_backend="hybridep", **layout, **forced
    )
    third = [*third[:-1], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
    fourth = [*bridge((), moe_flex_dispatcher_backend="ncclep", **layout)[:-1]]
    fourth += ["ImportError: TransformerEngine NCCL EP is unavailable. The 'ncclep' backend"]
    arms = {"b.log": second, "c.log": third, "d.log": fourth}
    records = [record(first), *(record(written(tmp_path, lines, name)) for name, lines in arms.items())]
    assert [one.status.value for one in records] == ["ok", "ok", "oom", "unavailable"]
    one = verdict(records)
    assert one.kind is VerdictKind.NOT_COMPARABLE
    assert {"workload.tp", "workload.routing"} <= different(one)
    found = {finding.id for finding in one.findings}
    assert {"confounded-tp", "confounded-routing", "single-run"} <= found
    assert {"arm-oom-is-not-slow", "arm-missing-is-not-slow"} <= found


def test_published_case_of_may_2026_has_only_alltoall(tmp_path: Path) -> None:
    model = {
        "expert_model_parallel_size": 16,
        "num_moe_experts": 128,
        "moe_permute_fusion": False,
        "cuda_graph_modules": ["moe_router", "moe_preprocess"],
    }
    flex = {"moe_token_dispatcher_type": "flex"}
    head = bridge((), planned=5, moe_token_dispatcher_type="alltoall", **model)[:-1]
    steps = [iteration(n, 5, elapsed_ms=45650.0, loss=11.44050, tflops=132.9, at=46.0 * n) for n in range(1, 6)]
    memory = "[Rank 0] (after 2 iterations) memory (GB) | mem-max-allocated-gigabytes: 61.351 | mem-allocated-count: 1"
    measured = record(written(tmp_path, [*head, *steps, memory], "alltoall.log"))
    missing = []
    for backend, text in (("deepep", "DeepEP is not installed."), ("hybridep", "HybridEP is not installed.")):
        named = {} if backend == "deepep" else {"moe_flex_dispatcher_backend": backend}
        lines = [*bridge((), planned=5, **flex, **named, **model)[:-1], f"[rank0]: ImportError: {text} Please install"]
        missing.append(record(written(tmp_path, lines, f"{backend}.log")))
    assert [(one.choice.dispatcher, one.status.value) for one in missing] == [
        ("deepep", "unavailable"),
        ("hybridep", "unavailable"),
    ]
    one = verdict([measured, *missing])
    assert one.kind is VerdictKind.ONLY_AVAILABLE
    assert one.recommended is not None
    assert one.recommended.label == "alltoall"
    limits = [finding for finding in one.findings if finding.id == "arm-missing-is-not-slow"]
    assert [finding.message.partition(":")[0] for finding in limits] == ["deepep", "hybridep"]
    assert measured.training is not None
    assert measured.training.metrics is not None
    assert measured.training.metrics.tflops_per_gpu_logged == pytest.approx(132.9)
    assert measured.training.loss.last == 11.4405
    assert measured.memory is not None
    assert measured.memory.allocated_peak_bytes == 61_351_000_000
