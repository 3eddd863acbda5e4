"""Window, statistics and throughput: declared, recomputed, nothing dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_logs import bridge, elapsed_of, iteration, megatron_lm, record, written

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.evidence.training import TrainingMetrics
from moe_dispatch.megatron.ingest.timeline import WindowRequest
from moe_dispatch.megatron.model_args import parallel_args
from moe_dispatch.site.hardware import find_hardware


def metrics(one: object) -> TrainingMetrics:
    found = one.training.metrics  # type: ignore[attr-defined]
    assert isinstance(found, TrainingMetrics)
    return found


def times(folder: Path, *elapsed_ms: float, tflops: float | None = None) -> Path:
    """A log whose iteration N took the N-th of these times."""
    planned = len(elapsed_ms)
    head = [line for line in megatron_lm((), planned=planned) if "after training" not in line]
    lines = [iteration(number, planned, elapsed_ms=one, tflops=tflops) for number, one in enumerate(elapsed_ms, 1)]
    return written(folder, [*head, *lines])


def test_slow_start_is_found_by_its_times_and_later_outliers_stay(tmp_path: Path) -> None:
    one = record(times(tmp_path, 24767, 12400, 316, 43, 43, 44, 43, 97, 43, 42))
    assert one.training is not None
    assert one.training.window.first == 4
    found = metrics(one)
    assert found.outliers == (8,)
    assert found.median_ms == 43
    assert found.mean_ms == pytest.approx((43 + 43 + 44 + 43 + 97 + 43 + 42) / 7)
    assert found.spread == pytest.approx((97 - 42) / 43)


def test_warm_up_never_takes_more_than_half(tmp_path: Path) -> None:
    one = record(times(tmp_path, *([100.0] * 8 + [10.0] * 4)))
    assert one.training is not None
    assert one.training.window.first is not None
    assert one.training.window.first <= 8


def test_zero_printed_throughput_is_no_throughput(tmp_path: Path) -> None:
    one = record(times(tmp_path, 76060, 40700, 5250, 49170, 5200, 5210, tflops=0.0))
    found = metrics(one)
    assert found.tflops_per_gpu_logged is None
    assert found.tokens_per_s_per_gpu == pytest.approx(16 * 128 / (found.mean_ms / 1e3 * 8))
    assert found.tflops_per_gpu is not None
    assert found.tflops_per_gpu > 0
    assert 4 in found.outliers


def test_printed_throughput_of_another_formula_does_not_matter(tmp_path: Path) -> None:
    plain, inflated = (metrics(record(times(tmp_path, *[50.0] * 8, tflops=value))) for value in (100.0, 210.0))
    assert plain.tflops_per_gpu == inflated.tflops_per_gpu
    assert (plain.tflops_per_gpu_logged, inflated.tflops_per_gpu_logged) == (100.0, 210.0)


def test_mfu_needs_the_gpu_that_the_user_names(tmp_path: Path) -> None:
    path = times(tmp_path, *[50.0] * 8)
    assert metrics(record(path)).mfu is None
    hopper = metrics(record(path, gpu=find_hardware("h100")))
    assert hopper.tflops_per_gpu is not None
    assert hopper.mfu == pytest.approx(hopper.tflops_per_gpu / 989)
    assert hopper.peak_of.startswith("H100")


def test_log_interval_averages_and_hides_iteration_one(tmp_path: Path) -> None:
    lines = megatron_lm([1, *range(5, 41, 5)], planned=40, log_interval=5)
    one = record(written(tmp_path, lines))
    assert one.status is RunStatus.OK
    assert one.training is not None
    assert one.training.log_interval == 5
    assert (one.training.window.first, one.training.window.needed) == (10, 7)
    without = [line for line in lines if "iteration       20/" not in line]
    assert record(written(tmp_path, without)).status is RunStatus.TRUNCATED


def test_restart_counts_each_iteration_once_and_drops_its_warm_up(tmp_path: Path) -> None:
    first = megatron_lm(range(1, 8), planned=12)[:-1]
    resumed = "  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 5"
    second = [iteration(number, 12, elapsed_ms=200.0 + number, at=100.0 + number) for number in range(6, 13)]
    one = record(written(tmp_path, [*first, resumed, *second]))
    assert one.training is not None
    assert one.training.restarts == 1
    assert one.performance is not None
    samples = {sample.step: sample.latency_us["total"] / 1e3 for sample in one.performance.iterations}
    assert list(samples) == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert (samples[7], samples[8]) == (107.0, 208.0)  # the repeated 6 and 7 are warm-up of the second attempt
    assert [entry.elapsed_ms for entry in one.training.iterations if entry.iteration == 7] == [107.0, 207.0]


def test_fixed_window_is_the_declared_one(tmp_path: Path) -> None:
    one = record(written(tmp_path, megatron_lm()), window=WindowRequest.parse("4-6"))
    assert metrics(one).mean_ms == 105.0
    assert one.contract.measure["window"] == "iterations 4-6"


@pytest.mark.parametrize("text", ["", "5", "9-3", "0-4", "a-b", "1-2-3"])
def test_window_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="41-50"):
        WindowRequest.parse(text)


def test_bridge_step_times_give_the_printed_throughput(tmp_path: Path) -> None:
    one = record(written(tmp_path, bridge(moe_token_dispatcher_type="alltoall", expert_model_parallel_size=8)))
    assert one.status is RunStatus.OK
    assert metrics(one).tflops_per_gpu_logged == pytest.approx(sum(300 - n for n in range(3, 11)) / 8)
    assert elapsed_of(one)[10] == 21000.0
    assert one.contract.workload["global_batch"] == 16
    assert metrics(one).tokens_per_s_per_gpu is None


def test_ranks_of_the_user_stand_in_where_the_log_is_silent(tmp_path: Path) -> None:
    lines = bridge(moe_token_dispatcher_type="alltoall", expert_model_parallel_size=8, seq_length=128)
    one = record(written(tmp_path, lines), ranks=16)
    assert one.contract.site["ranks"] == 16
    assert metrics(one).tokens_per_s_per_gpu == pytest.approx(16 * 128 / (metrics(one).mean_ms / 1e3 * 16))


def test_unknown_world_leaves_out_what_is_per_gpu(tmp_path: Path) -> None:
    lines = megatron_lm(world_size=...)
    found = metrics(record(written(tmp_path, lines)))
    assert (found.tokens_per_s_per_gpu, found.tflops_per_gpu) == (None, None)
    assert found.mean_ms == 106.5


def test_catalogue_model_is_recognised_by_its_sizes(tmp_path: Path) -> None:
    from moe_dispatch.workload.workload import load_workload

    workload = load_workload("qwen3-30b-a3b", ep=8)
    model = workload.model
    assert "--expert-model-parallel-size" in parallel_args(workload)
    lines = megatron_lm(
        hidden_size=model.hidden,
        num_layers=model.num_layers,
        num_experts=model.num_experts,
        moe_router_topk=model.topk,
        moe_ffn_hidden_size=model.moe_ffn_hidden,
    )
    assert record(written(tmp_path, lines)).contract.workload["model"] == "qwen3-30b-a3b"
