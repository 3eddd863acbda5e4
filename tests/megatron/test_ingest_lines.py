"""Lines as launchers and frameworks print them: prefixes, cut and glued lines, units, blocks, encodings, gzip."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from ingest_logs import bridge, elapsed_of, iteration, megatron_lm, memory_mib, read, record, written

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.megatron.ingest.dumps import read_config_file
from moe_dispatch.megatron.ingest.iterations import iteration_lines
from moe_dispatch.megatron.ingest.memory import memory_line
from moe_dispatch.megatron.ingest.scan import CHUNK_BYTES, strip_prefixes

EXPECTED = {number: 100.0 + number for number in range(1, 11)}

PREFIXES: dict[str, Callable[[int, str], str]] = {
    "srun -l": lambda rank, line: f"{rank:3d}: {line}",
    "torchrun --tee": lambda rank, line: f"[default{rank}]:{line}",
    "srun and torchrun": lambda rank, line: f" {rank}: [default{rank}]:{line}",
    "exception hook": lambda rank, line: f"[rank{rank}]: {line}",
    "colour": lambda _, line: f"\x1b[32m{line}\x1b[0m",
    "kubectl": lambda _, line: f"2026-08-22T10:15:23.123456789Z stdout F {line}",
    "docker compose": lambda rank, line: f"worker-{rank}  | {line}",
    "progress bar": lambda _, line: f"downloading 10%\rdownloading 99%\r{line}",
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_of_launchers_change_nothing(tmp_path: Path, prefix: str) -> None:
    lines = [PREFIXES[prefix](index % 8, line) for index, line in enumerate(megatron_lm())]
    one = record(written(tmp_path, lines))
    assert one.status is RunStatus.OK
    assert elapsed_of(one) == EXPECTED
    assert one.contract.workload["ep"] == 8
    assert one.training is not None
    assert len(one.training.memory) == 2


def test_prefix_names_the_rank_and_leaves_rank_in_brackets() -> None:
    assert strip_prefixes(" 187: [rank187]: Traceback") == ("Traceback", 187)
    assert strip_prefixes("[default0]:  name") == ("  name", None)
    text = memory_mib(0, 2)
    assert strip_prefixes(text) == (text, None)


def test_only_fields_with_their_closing_bar_count() -> None:
    whole = iteration(7, tflops=44.3)
    cut = whole[: whole.index("106.") + 2] if "106." in whole else whole[: whole.index("107.0") + 2]
    (line,) = iteration_lines(cut)
    assert (line.iteration, line.elapsed_ms, line.complete) == (7, None, False)


def test_two_iterations_on_one_physical_line_keep_their_values() -> None:
    first, second = iteration(3), iteration(4)
    cut = first[: first.index("(ms): 1") + 7]
    (three, four) = iteration_lines(cut + second)
    assert (three.iteration, three.elapsed_ms) == (3, None)
    assert (four.iteration, four.elapsed_ms) == (4, 104.0)


def test_step_time_of_another_rank_on_the_same_line(tmp_path: Path) -> None:
    lines = bridge(moe_token_dispatcher_type="alltoall", expert_model_parallel_size=8)
    glued = "\n".join(lines).replace("MODEL_TFLOP/s/GPU\n", "MODEL_TFLOP/s/GPU")
    one = record(written(tmp_path, glued))
    assert elapsed_of(one) == {number: 20000.0 + 100 * number for number in range(1, 11)}


def test_total_of_eight_digits_has_no_space_before_it() -> None:
    (line,) = iteration_lines(iteration(5, 12345678))
    assert (line.iteration, line.planned) == (5, 12345678)


def test_mib_and_decimal_gigabytes() -> None:
    mib = memory_line(memory_mib(3, 2, 1000.5))
    gigabytes = memory_line(
        "[Rank 0] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 45.123 | mem-max-allocated-gigabytes: "
        "61.351 | mem-max-reserved-gigabytes: 63.901 | mem-alloc-retires: 0 | mem-allocated-count: 2911"
    )
    assert mib is not None
    assert (mib.rank, mib.max_allocated_bytes) == (3, round(1000.5 * 2**20))
    assert gigabytes is not None
    assert (gigabytes.max_allocated_bytes, gigabytes.max_reserved_bytes) == (61_351_000_000, 63_901_000_000)


def test_cut_memory_line_loses_its_last_value() -> None:
    whole = memory_mib(0, 2)
    line = memory_line(whole[:-4])
    assert line is not None
    assert line.max_allocated_bytes is not None
    assert line.max_reserved_bytes is None


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    body = "\n".join(megatron_lm()).encode()
    path.write_bytes(b"\xff\xfe\x00 broken \xc3\n" + body + b"\n\x80\x81 iteration \xff/ |\n")
    assert elapsed_of(record(path)) == EXPECTED


def test_gzip_whole_and_cut(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join(megatron_lm()).encode())
    whole, cut = tmp_path / "run.log.gz", tmp_path / "cut.log"
    whole.write_bytes(packed)
    cut.write_bytes(packed[: len(packed) // 2])
    assert elapsed_of(record(whole)) == EXPECTED
    assert record(cut).status is not RunStatus.OK


def test_last_line_without_its_end_is_not_taken(tmp_path: Path) -> None:
    lines = megatron_lm()
    last = next(index for index, line in enumerate(lines) if "iteration       10/" in line)
    text = "\n".join(lines[:last]) + "\n" + lines[last][: lines[last].index("110.0") + 4]
    one = record(written(tmp_path, text))
    assert one.status is RunStatus.TRUNCATED
    assert elapsed_of(one)[9] == 109.0
    assert elapsed_of(one).get(10) is None


def test_a_line_longer_than_a_chunk_and_lines_across_chunks(tmp_path: Path) -> None:
    lines = megatron_lm()
    filler = ["x" * (CHUNK_BYTES * 2 + 17)] + ["nothing of interest " * 5] * 20_000
    assert elapsed_of(record(written(tmp_path, [*lines[:20], *filler, *lines[20:]]))) == EXPECTED


def test_files_of_one_run_in_any_order(tmp_path: Path) -> None:
    lines = megatron_lm()
    head = [line for line in lines if " iteration " not in line]
    rest = [line for line in lines if " iteration " in line]
    files = [
        written(tmp_path, rest[5:], "b.log"),
        written(tmp_path, head, "a.log"),
        written(tmp_path, rest[:5], "c.log"),
    ]
    one = record(*files)
    assert one.status is RunStatus.OK
    assert elapsed_of(one) == EXPECTED


def test_argument_dump_between_other_ranks_and_with_long_names(tmp_path: Path) -> None:
    long = "inference_dynamic_batching_enable_prefix_caching"
    lines = megatron_lm(**{long: "yes"})
    noisy = [other for line in lines for other in (line, "[rank5]: something ...... else", "  moe_router_topk ... 9")]
    run = read(written(tmp_path, noisy))
    assert run.settings.get(long) == "yes"
    assert run.settings.get("moe_router_topk") == 2


def test_dump_without_its_end_keeps_what_was_printed(tmp_path: Path) -> None:
    lines = megatron_lm()
    start = next(index for index, line in enumerate(lines) if "arguments -----" in line)
    run = read(written(tmp_path, lines[: start + 12]))
    assert run.settings.get("bf16") is True
    assert run.settings.find("world_size") is None


def test_config_file_reads_tags_and_refuses_what_is_no_dump(tmp_path: Path) -> None:
    good = tmp_path / "config.yaml"
    good.write_text(
        "model:\n  _target_: a.b.C\n  moe_token_dispatcher_type: flex\n"
        "  init: !!python/object/apply:os.system ['false']\ntrain:\n  train_iters: 50\n"
    )
    dump = read_config_file(good)
    assert dump.values["moe_token_dispatcher_type"] == "flex"
    assert dump.values["train.train_iters"] == 50
    bad = tmp_path / "bad.yaml"
    bad.write_text("- a\n- b\n")
    with pytest.raises(UsageError, match="no mapping 'model'"):
        read_config_file(bad)
