"""The real logs: values read by hand from the files, statuses with their reason, and what `compare` may say of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ingest_logs import elapsed_of, real, real_text, record, written

from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.megatron.ingest.timeline import WindowRequest
from moe_dispatch.site.hardware import find_hardware

ROUNDING = 0.05 / 44.3
"""Megatron prints TFLOP/s/GPU with one decimal."""


def test_alltoall_parses_fully() -> None:
    one = record(real("alltoall-a"))
    training = one.training
    assert one.status is RunStatus.OK
    assert training is not None
    assert (training.framework, training.core_version, training.effective) == ("megatron-lm", "0.20.0", "alltoall")
    assert len(training.iterations) == 24
    third = training.iterations[2]
    assert (third.iteration, third.elapsed_ms, third.tflops_per_gpu_logged) == (3, 666.9, 44.3)
    assert (third.lm_loss, third.grad_norm, third.skipped, third.nan) == (10.63044, 2.119, 0, 0)
    assert elapsed_of(one)[24] == 571.8
    assert (training.loss.first, training.loss.last) == (10.77851, 8.061523)
    first, second = training.memory
    assert (first.after_iteration, first.max_allocated_bytes) == (1, round(10271.17 * 2**20))
    assert (second.after_iteration, second.max_reserved_bytes) == (2, 15294 * 2**20)
    assert one.memory is not None
    assert one.memory.allocated_peak_bytes == round(14097.41 * 2**20)


def test_window_leaves_out_the_two_lines_that_hold_iteration_one() -> None:
    one = record(real("alltoall-a"))
    assert one.performance is not None
    assert one.training is not None
    assert [sample.step for sample in one.performance.iterations] == list(range(3, 25))
    assert one.performance.iterations[0].latency_us == {"total": 666900.0}
    assert (one.training.window.first, one.training.window.last) == (3, 24)
    assert (one.training.window.needed, one.training.window.found) == (22, 22)


def test_throughput_is_recomputed_by_the_stated_formula() -> None:
    one = record(real("alltoall-a"), gpu=find_hardware("h200"), window=None)
    assert one.training is not None
    metrics = one.training.metrics
    assert metrics is not None
    # 4 layers, hidden 2048, 32 experts of 768, top-8, 16 heads of 128 (no grouping), vocabulary 32,000, SwiGLU:
    # 6 x (4 x 8 x 3 x 2048 x 768 + 4 x 4 x 2048 x 2048 + 2048 x 32000) FLOPs a token, and the causal half of attention
    tokens, sequence = 16 * 2048, 2048
    linear = 6 * (4 * 8 * 3 * 2048 * 768 + 4 * 4 * 2048 * 2048 + 2048 * 32000)
    flops = tokens * linear + tokens * sequence * 4 * 6 * 16 * 128
    assert flops / (0.6669 * 2) / 1e12 == pytest.approx(44.3, rel=ROUNDING)
    assert metrics.tflops_per_gpu == pytest.approx(flops / (metrics.mean_ms / 1e3 * 2) / 1e12)
    assert metrics.tokens_per_s_per_gpu == pytest.approx(tokens / (metrics.mean_ms / 1e3 * 2))
    assert metrics.mfu == pytest.approx(metrics.tflops_per_gpu / 989)


def test_hybridep_is_named_with_its_knobs_and_proof() -> None:
    one = record(real("hybridep-a"))
    training = one.training
    assert training is not None
    assert one.status is RunStatus.OK
    assert one.choice.label == "hybridep(num_sms=16, num_sms_preprocessing=32)"
    assert (training.effective, training.sm_count, training.sm_field) == (
        "hybridep",
        16,
        "moe_flex_dispatcher_num_sms",
    )
    assert training.activation.level == "deduced"
    assert one.provenance.provider == "deep_ep.HybridEPBuffer"
    assert elapsed_of(one)[23] == 474.1
    assert len(training.memory) == 2
    assert "Received 15 death signal" in training.outcome.fallout[0]


def test_missing_package_is_unavailable_and_carries_no_time() -> None:
    one = record(real("deepep-missing"))
    assert one.status is RunStatus.UNAVAILABLE
    assert one.choice.dispatcher == "deepep"
    assert one.performance is None
    assert one.partial is None
    assert one.training is not None
    assert one.training.outcome.reason_class == "not-installed"
    assert one.training.outcome.root == "ImportError: DeepEP is not installed."
    assert any("ChildFailedError" in text for text in one.training.outcome.fallout)
    assert "may be there and broken" in one.reason
    assert "doctor" in one.fix


def test_truncated_run_keeps_its_iterations_and_derives_nothing() -> None:
    one = record(real("hybridep-truncated"))
    assert one.status is RunStatus.TRUNCATED
    assert one.performance is None
    assert one.training is not None
    assert one.training.metrics is None
    assert [entry.iteration for entry in one.training.iterations] == list(range(1, 17))
    assert one.training.iterations[15].elapsed_ms == 608.8
    assert one.partial is not None
    assert len(one.partial.iterations) == 16
    assert "iteration 16 of 24" in one.reason


def test_truncated_run_counts_where_the_declared_window_is_complete() -> None:
    path = real("hybridep-truncated")
    whole = record(path, window=WindowRequest.parse("7-16"))
    assert whole.status is RunStatus.OK
    assert whole.performance is not None
    assert [sample.step for sample in whole.performance.iterations] == list(range(7, 17))
    assert record(path, window=WindowRequest.parse("7-17")).status is RunStatus.TRUNCATED


def test_same_log_is_the_same_launch(tmp_path: Path) -> None:
    again = written(tmp_path, real_text("alltoall-a"), "copy.log")
    first, second = record(real("alltoall-a")), record(again)
    assert (first.session, first.processes) == (second.session, second.processes)
    assert first.run_id != second.run_id
    assert record(real("hybridep-a")).processes != first.processes
