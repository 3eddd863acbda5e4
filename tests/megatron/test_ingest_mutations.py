"""Damaged logs: no traceback from any bytes, and no value ever moves to another iteration."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingest_logs import bridge, elapsed_of, iteration, megatron_lm, record, written

from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.ingest import dumps, iterations, memory
from moe_dispatch.megatron.ingest.facts import RunFacts
from moe_dispatch.megatron.ingest.nsys import read_profile
from moe_dispatch.megatron.ingest.outcome import OutcomeReader
from moe_dispatch.megatron.ingest.scan import ANCHORS, strip_prefixes

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LM, BRIDGE = megatron_lm(), bridge(moe_token_dispatcher_type="alltoall", expert_model_parallel_size=8)
PIECES = st.one_of(
    st.sampled_from([line.encode() for line in (*LM, *BRIDGE)]),
    st.sampled_from(ANCHORS),
    st.binary(max_size=60),
    st.sampled_from([b"\n", b"\r", b"\x1b[31m", b" | ", b"nan", b"iteration 99999999999999999999/ 1 |"]),
)


def mutated(lines: list[str], seed: int) -> list[str]:
    """Lines dropped, duplicated, cut at the front or the end, and in another order."""
    chance = random.Random(seed)
    result: list[str] = []
    for line in lines:
        kind = chance.choice(("keep", "keep", "keep", "drop", "twice", "cut", "behead"))
        at = chance.randrange(len(line) + 1)
        result += {"keep": [line], "drop": [], "twice": [line, line], "cut": [line[:at]], "behead": [line[at:]]}[kind]
    for _ in range(chance.randrange(20)):
        left, right = chance.randrange(len(result) or 1), chance.randrange(len(result) or 1)
        if result:
            result[left], result[right] = result[right], result[left]
    return result


@pytest.mark.parametrize("seed", range(60))
def test_values_stay_with_their_iteration(tmp_path: Path, seed: int) -> None:
    one = record(written(tmp_path, mutated(LM, seed)))
    assert one.training is not None
    for entry in one.training.iterations:
        assert entry.elapsed_ms in (None, 100.0 + entry.iteration)
        assert entry.lm_loss in (None, 8.0)
        assert entry.grad_norm in (None, 1.0)
    for sample in one.performance.iterations if one.performance is not None else ():
        assert sample.step is not None
        assert sample.latency_us["total"] == pytest.approx((100.0 + sample.step) * 1e3)


@pytest.mark.parametrize("seed", range(60))
def test_step_time_lines_go_to_the_iteration_of_that_time_or_to_none(tmp_path: Path, seed: int) -> None:
    one = record(written(tmp_path, mutated(BRIDGE, seed)))
    assert one.training is not None
    for entry in one.training.iterations:
        assert entry.elapsed_ms in (None, 20000.0 + 100 * entry.iteration)
        assert entry.tflops_per_gpu_logged in (None, 300.0 - entry.iteration)


def test_a_dropped_iteration_is_missed_and_not_filled(tmp_path: Path) -> None:
    without = [line for line in LM if "iteration        6/" not in line]
    one = record(written(tmp_path, without))
    assert one.status.value == "truncated"
    assert 6 not in elapsed_of(one)
    assert "7 of the 8" in one.reason


def test_warm_up_is_dropped_by_iteration_and_not_by_position(tmp_path: Path) -> None:
    without = [line for line in LM if "iteration        1/" not in line and "iteration        2/" not in line]
    one = record(written(tmp_path, without))
    assert one.status.value == "ok"
    assert one.training is not None
    assert one.training.window.first == 3


@FUZZ
@given(st.lists(PIECES, max_size=60))
def test_any_bytes_are_read_without_a_traceback(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "fuzz.log"
    path.write_bytes(b"".join(pieces))
    record(path)


@FUZZ
@given(st.text(max_size=300))
def test_every_parser_takes_any_text(text: str) -> None:
    iterations.iteration_lines(text + iteration(3)[:-5] + text)
    iterations.step_times(text)
    memory.memory_line(text)
    dumps.parse_value(text)
    strip_prefixes(text)
    facts, outcome = RunFacts(), OutcomeReader()
    facts.feed(text, None)
    outcome.feed(f"Error: {text}", 3)
    outcome.ending(measured=False, finished=False)


@FUZZ
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_configuration_is_read_or_refused(tmp_path: Path, document: Any) -> None:
    import yaml

    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"model": document, "train": document}), encoding="utf-8")
    log = written(tmp_path, LM[-12:])
    if isinstance(document, dict):
        record(log, config=path)
    else:
        with pytest.raises(UsageError, match=r"config\.yaml"):
            record(log, config=path)


@FUZZ
@given(st.binary(max_size=400))
def test_a_profile_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"profile\.sqlite"):
        read_profile(path)
