"""Status by evidence: what ended a run, what replaced its dispatcher, and how strongly the dispatcher is proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ingest_logs import bridge, iteration, megatron_lm, read, record, summary, written

from moe_dispatch.evidence.record import RunRecord, RunStatus

FLEX = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
FALL_BACK = (
    "DeepEP is only applicable to Ampere, Hopper, and Blackwell (B200/B300) GPUs. Current GPU: NVIDIA GB200. "
    "Falling back to alltoall."
)
CHECKPOINT = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have "
    "different metadata than during the forward pass."
)
ENDINGS = [
    ("ImportError: DeepEP is not installed. Please install DeepEP package", RunStatus.UNAVAILABLE, "not-installed"),
    ("ImportError: HybridEP is not installed. Please install HybridEP", RunStatus.UNAVAILABLE, "not-installed"),
    (
        "ImportError: TransformerEngine NCCL EP is unavailable. The 'ncclep' backend requires a build with it",
        RunStatus.UNAVAILABLE,
        "missing-feature",
    ),
    (
        "RuntimeError: NCCL EP requires NCCL >= 2.30.4, found 2.27.3 at runtime. Set LD_LIBRARY_PATH",
        RunStatus.UNAVAILABLE,
        "nccl-too-old",
    ),
    ("AssertionError: Duplicate NCCL runtime found: /a /b", RunStatus.UNAVAILABLE, "two-nccl-copies"),
    (
        "ImportError: /venv/deep_ep_cpp.cpython-312-x86_64-linux-gnu.so: undefined symbol: "
        "_Z14THPStream_WrapRKN3c106StreamE",
        RunStatus.UNAVAILABLE,
        "torch-abi-mismatch",
    ),
    ("ModuleNotFoundError: No module named 'deep_ep'", RunStatus.UNAVAILABLE, "not-installed"),
    ("AssertionError: DeepEP dispatcher requires TPxEP > 1", RunStatus.UNSUPPORTED, "group-of-one"),
    ("AssertionError: NCCL EP dispatcher requires TPxEP > 1", RunStatus.UNSUPPORTED, "group-of-one"),
    ("AssertionError: Flex token dispatcher requires TPxEP > 1", RunStatus.UNSUPPORTED, "group-of-one"),
    ("AssertionError: Unsupported number of EP ranks: 12", RunStatus.UNSUPPORTED, "group-size"),
    (
        "ValueError: DeepEP is supported for Ampere, Hopper, and Blackwell (B200/B300) GPUs. Current GPU: NVIDIA GB200",
        RunStatus.UNSUPPORTED,
        "config-rejected",
    ),
    ("RuntimeError: The buffer config is not valid.", RunStatus.UNSUPPORTED, "buffer-config"),
    ("RuntimeError: Failed to compile the code, compile command: nvcc", RunStatus.UNAVAILABLE, "jit-failed"),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
        RunStatus.OOM,
        "out-of-memory",
    ),
    ("RuntimeError: CUDA error: out of memory", RunStatus.OOM, "out-of-memory"),
    (CHECKPOINT, RunStatus.CRASHED, "recompute-mismatch"),
    ("AttributeError: 'Buffer' object has no attribute 'group'", RunStatus.CRASHED, "backend-failed"),
    ("RuntimeError: DeepEP error: timeout (dispatch CPU)", RunStatus.TIMEOUT, "dispatcher-timeout"),
    ("DeepEP timeout check failed: rank = 3, thread = 0", RunStatus.TIMEOUT, "dispatcher-timeout"),
    (
        "[rank3]:[E822 ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
        RunStatus.TIMEOUT,
        "collective-timeout",
    ),
    ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED DUE TO TIME LIMIT ***", RunStatus.TRUNCATED, "time-limit"),
    ("ValueError: something of the user's own", RunStatus.CRASHED, "exception"),
]


def stopped(folder: Path, *messages: str, at: int = 6, **config: Any) -> RunRecord:
    lines = [line for line in megatron_lm(range(1, at + 1), **{**FLEX, **config}) if "after training" not in line]
    return record(written(folder, [*lines, *messages]))


@pytest.mark.parametrize(("message", "status", "reason_class"), ENDINGS, ids=[one[2] for one in ENDINGS])
def test_each_ending_has_its_status_and_class(
    tmp_path: Path, message: str, status: RunStatus, reason_class: str
) -> None:
    one = stopped(tmp_path, message)
    assert one.training is not None
    assert (one.status, one.training.outcome.reason_class) == (status, reason_class)
    assert one.performance is None
    assert one.reason
    assert one.fix


def test_first_cause_explains_and_the_rest_is_fallout(tmp_path: Path) -> None:
    timeout = "[rank2]: RuntimeError: DeepEP error: timeout (dispatch CPU)"
    memory = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    launcher = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    one = stopped(tmp_path, timeout, launcher, memory)
    assert one.status is RunStatus.OOM
    assert one.training is not None
    assert one.training.outcome.rank == 5
    assert len(one.training.outcome.fallout) == 2


def test_messages_after_the_work_do_not_fail_it(tmp_path: Path) -> None:
    lost = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes."
    run = read(written(tmp_path, [*megatron_lm(), lost]))
    assert run.judged.status is RunStatus.OK
    assert [finding.id for finding in run.findings] == ["ingest-messages-after-the-work"]


def test_out_of_memory_after_a_declared_window_still_fails_it(tmp_path: Path) -> None:
    from moe_dispatch.megatron.ingest.timeline import WindowRequest

    lines = megatron_lm(range(1, 9))[:-1]
    path = written(tmp_path, [*lines, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"])
    assert record(path, window=WindowRequest.parse("3-6")).status is RunStatus.OOM


def test_bridge_fall_back_is_no_result_of_the_requested_dispatcher(tmp_path: Path) -> None:
    lines = bridge(moe_token_dispatcher_type="alltoall", moe_flex_dispatcher_backend=None)
    one = record(written(tmp_path, [FALL_BACK, *lines]), arm="deepep")
    assert one.status is RunStatus.FELL_BACK
    assert one.choice.dispatcher == "deepep"
    assert one.performance is None
    assert "alltoall" in one.reason


def test_requested_before_and_effective_after_validation(tmp_path: Path) -> None:
    final = ["Final configuration:", "model:", "  moe_token_dispatcher_type: flex"]
    final += ["  moe_flex_dispatcher_backend: deepep", "train:", "  train_iters: 10", "!"]
    lines = bridge(moe_token_dispatcher_type="alltoall", moe_flex_dispatcher_backend=None)
    one = record(written(tmp_path, [*final, *lines]))
    assert one.status is RunStatus.FELL_BACK
    assert one.training is not None
    assert (one.training.requested, one.training.effective) == ("deepep", "alltoall")
    stages = {(seen.field, seen.stage): seen.value for seen in one.training.seen}
    assert stages["moe_token_dispatcher_type", "final_configuration"] == "flex"
    assert stages["moe_token_dispatcher_type", "summary"] == "alltoall"


def test_backend_named_without_type_flex_did_not_run(tmp_path: Path) -> None:
    one = record(written(tmp_path, megatron_lm(moe_flex_dispatcher_backend="hybridep")))
    assert one.status is RunStatus.FELL_BACK
    assert "hybridep was requested, and alltoall is in effect" in one.reason


def test_default_backend_in_an_alltoall_dump_means_nothing(tmp_path: Path) -> None:
    one = record(written(tmp_path, megatron_lm(moe_flex_dispatcher_backend="deepep")))
    assert (one.status, one.choice.label) == (RunStatus.OK, "alltoall")


def test_deprecated_flag_selects_deepep(tmp_path: Path) -> None:
    one = record(written(tmp_path, megatron_lm(moe_token_dispatcher_type="flex", moe_enable_deepep=True)))
    assert one.choice.dispatcher == "deepep"


def test_deprecated_sm_knob_reaches_whatever_backend_runs(tmp_path: Path) -> None:
    flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    one = record(written(tmp_path, megatron_lm(**flex, moe_hybridep_num_sms=32)))
    assert one.training is not None
    assert (one.choice.label, one.training.sm_field) == ("deepep(num_sms=32)", "moe_hybridep_num_sms")


def test_summary_without_a_backend_line_means_the_default(tmp_path: Path) -> None:
    one = record(written(tmp_path, bridge(moe_token_dispatcher_type="flex", expert_model_parallel_size=8)))
    assert (one.status, one.choice.dispatcher) == (RunStatus.OK, "deepep")


def test_without_a_configuration_nothing_is_proven(tmp_path: Path) -> None:
    one = record(written(tmp_path, [iteration(number) for number in range(1, 11)]))
    assert one.status is RunStatus.UNPROVEN
    assert one.choice.dispatcher == "unknown"
    assert one.training is not None
    assert one.training.activation.level == "none"


def test_configuration_from_before_validation_is_no_proof(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model:\n  moe_token_dispatcher_type: flex\n  moe_flex_dispatcher_backend: hybridep\n")
    log = written(tmp_path, [iteration(number) for number in range(1, 11)])
    before, saved = record(log, config=config), record(log, config=config, config_saved=True)
    assert (before.status, saved.status) == (RunStatus.UNPROVEN, RunStatus.OK)
    assert before.training is not None
    assert before.training.activation.level == "configured"


def test_trace_line_is_the_strongest_proof_and_overrules_a_configuration(tmp_path: Path) -> None:
    trace = 'moe-dispatch-trace {"class": "_HybridEPManager", "layers": 2, "dispatch_calls": 20, "combine_calls": 20}'
    proven = record(written(tmp_path, [*megatron_lm(**FLEX), trace]))
    assert proven.training is not None
    assert proven.training.activation.level == "traced"
    assert proven.training.activation.evidence[-1] == "named by the arguments"
    other = record(written(tmp_path, [*megatron_lm(), trace]))
    assert other.status is RunStatus.FELL_BACK
    assert "hybridep ran" in other.reason


def test_backend_text_is_stronger_than_a_deduction(tmp_path: Path) -> None:
    text = "[Warning] NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=4 differs from detected value 8. Using it."
    one = record(written(tmp_path, [text, *megatron_lm(**FLEX)]))
    assert one.training is not None
    assert one.training.activation.level == "backend_text"


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"loss": None, "norm": "nan"}, "not finite"),
        ({"norm": "inf"}, "not finite"),
        ({"loss": 0.0, "norm": None, "skipped": 1, "nan": 1}, "skipped"),
    ],
)
def test_nan_and_skipped_iterations_are_no_performance(tmp_path: Path, bad: dict[str, Any], word: str) -> None:
    lines = [iteration(7, **bad) if "iteration        7/" in line else line for line in megatron_lm()]
    one = record(written(tmp_path, lines))
    assert one.status is RunStatus.INCORRECT
    assert word in one.reason
    assert one.correctness is not None
    assert not one.correctness.passed


def test_recompute_mismatch_of_hybridep_with_the_router_kept_is_layout_drift(tmp_path: Path) -> None:
    shapes = "  saved [1208, 2048] bf16 | recomputed [1143, 2048] bf16"
    config = tmp_path / "config.yaml"
    model = "model:\n  moe_token_dispatcher_type: flex\n  moe_flex_dispatcher_backend: {}\n  ignore_router_for_ac: {}\n"
    config.write_text(model.format("hybridep", "true"))
    log = written(tmp_path, ["step 0 forward ok", CHECKPOINT, shapes])
    run = read(log, config=config, config_saved=True)
    assert run.judged.status is RunStatus.CRASHED
    assert "saved [1208, 2048], recomputed [1143, 2048]" in run.judged.reason
    (finding,) = [one for one in run.findings if one.id.startswith("recompute")]
    assert finding.id == "recompute-dispatch-layout-drift"
    assert not any("ignore_router_for_ac" in advice for advice in finding.advice)
    config.write_text(model.format("deepep", "false"))
    shapes = "  saved [1208, 2048] bf16 | recomputed [1209, 2048] bf16"
    contrast = read(written(tmp_path, [CHECKPOINT, shapes]), config=config, config_saved=True)
    (finding,) = [one for one in contrast.findings if one.id.startswith("recompute")]
    assert finding.id == "recompute-router-flip"
    assert any("ignore_router_for_ac" in advice for advice in finding.advice)


def test_two_dumps_that_contradict_are_unknown(tmp_path: Path) -> None:
    other = summary({"moe_token_dispatcher_type": "flex"})
    run = read(written(tmp_path, [*bridge(moe_token_dispatcher_type="alltoall"), *other]))
    assert "moe_token_dispatcher_type" in run.settings.contradictions
    assert run.judged.status is not RunStatus.OK
