"""Filters and sorting over published rows and own records."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence_records import record

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.browse import Question, browse
from moe_dispatch.evidence.own import own_row
from moe_dispatch.evidence.published import load_pairs, load_training
from moe_dispatch.evidence.record import Contract, RunStatus
from moe_dispatch.evidence.search import find_row, make_filter, sort_rows
from moe_dispatch.evidence.store import Store

ROWS = load_training()
CONTRACT = Contract(
    workload={"model": "qwen3-30b-a3b", "ep": 16, "world": 16, "precision": "bf16", "routing": "zipf:1"},
    measure={"level": "layer"},
    site={"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3"},
    stack={},
)


def test_a_filter_keeps_exactly_the_rows_that_meet_all_conditions() -> None:
    kept = make_filter(ROWS, model="Qwen/Qwen3-235B-A22B", hardware="H100-SXM", ep=32, precision="fp8")
    found = [row for row in ROWS if kept.keeps(row)]
    assert found
    assert found == [
        row
        for row in ROWS
        if row.model == "qwen3-235b-a22b" and row.hardware == "h100" and row.ep == 32 and "fp8" in (row.precision or "")
    ]


def test_a_family_and_the_first_words_of_a_name_find_all_its_models() -> None:
    assert make_filter(ROWS, model="gpt-oss").models == {"gpt-oss-20b", "gpt-oss-120b"}
    assert make_filter(ROWS, model="qwen3-235b").models == {"qwen3-235b-a22b"}


def test_an_exact_precision_leaves_the_other_recipes_out() -> None:
    kept = make_filter(ROWS, precision="mxfp8")
    assert {row.precision for row in ROWS if kept.keeps(row)} == {"fp8_mx"}


def test_stated_leaves_inferred_and_unknown_out() -> None:
    kept = make_filter(ROWS, dispatcher="hybridep", stated=True)
    assert {row.basis for row in ROWS if kept.keeps(row)} == {"stated"}
    every = make_filter(ROWS, dispatcher="hybridep")
    assert {row.basis for row in ROWS if every.keeps(row)} == {"stated", "inferred"}


@pytest.mark.parametrize(("since", "first"), [("2026-08-15", "2026-08-15"), ("2026-08", "2026-08"), ("2026", "2026")])
def test_since_keeps_later_rows_and_never_an_undated_one(since: str, first: str) -> None:
    kept = make_filter(ROWS, since=since)
    dates = [row.date for row in ROWS if kept.keeps(row)]
    assert dates
    assert min(dates) >= first[:7]
    assert "" not in dates


def test_a_month_meets_a_since_inside_it() -> None:
    by_month = next(row for row in ROWS if row.date == "2026-08")
    assert make_filter(ROWS, since="2026-08-15").keeps(by_month)


@pytest.mark.parametrize(
    ("words", "said", "fix"),
    [
        ({"model": "qwen3-235b-a2"}, "--model 'qwen3-235b-a2'", "qwen3-235b-a22b"),
        ({"model": "glm-4-5-355b"}, "no evidence is about model 'glm-4-5-355b'", "--closest glm-4-5-355b"),
        ({"hardware": "h10"}, "--hardware 'h10'", "h100"),
        ({"dispatcher": "hybrid"}, "--dispatcher 'hybrid'", "hybridep"),
        ({"precision": "int4"}, "--precision 'int4'", "nvfp4"),
        ({"ep": 0}, "--ep 0 must be at least 1", ""),
        ({"since": "May"}, "--since 'May' is no date", "2026-05"),
    ],
)
def test_a_word_that_no_row_has_is_refused_with_the_nearest(words: dict[str, object], said: str, fix: str) -> None:
    with pytest.raises(UsageError) as refusal:
        make_filter(ROWS, **words)  # type: ignore[arg-type]
    assert said in refusal.value.message
    assert fix in refusal.value.fix


def test_sorting_puts_rows_without_the_figure_last() -> None:
    fastest = [row.step_s for row in sort_rows(ROWS, "training", "step_time_s")]
    known = [step for step in fastest if step is not None]
    assert known == sorted(known)
    assert fastest[: len(known)] == known
    slowest = [row.step_s for row in sort_rows(ROWS, "training", "-step-s")]
    assert slowest[: len(known)] == sorted(known, reverse=True)


def test_rows_cannot_be_sorted_by_what_their_kind_does_not_have() -> None:
    with pytest.raises(UsageError, match="kind ab") as refusal:
        sort_rows(load_pairs(), "ab", "step_time_s")
    assert "speedup" in refusal.value.fix


def test_an_id_is_found_or_the_nearest_are_named() -> None:
    assert find_row(ROWS, ROWS[3].id) is ROWS[3]
    with pytest.raises(UsageError) as refusal:
        find_row(ROWS, "mbskill-q30b-h100-hybridep-on")
    assert "mbskill-q30b-h100-hybridep-ov" in refusal.value.fix


def test_kinds_do_not_rank_together() -> None:
    with pytest.raises(UsageError, match="do not rank together"):
        browse(Question(words={}, sort="date"))


def test_own_records_stand_in_a_section_of_their_own(tmp_path: Path) -> None:
    Store(tmp_path).write(record(run_id="r1", contract=CONTRACT, choice=Choice(dispatcher="hybridep")))
    answer = browse(Question(words={"model": "qwen3-30b-a3b", "dispatcher": "hybridep"}, own=tmp_path))
    kinds = {section.kind: section.rows for section in answer.sections}
    assert [row.id for row in kinds["own"]] == ["r1"]
    assert "r1" not in {row.id for row in kinds["training"]}
    one_kind = browse(Question(words={}, kind="training", own=tmp_path, sort="step_s"))
    assert [section.kind for section in one_kind.sections] == ["training", "own"]


def test_an_own_record_speaks_the_words_of_published_rows(tmp_path: Path) -> None:
    row = own_row(record(contract=CONTRACT), tmp_path)
    assert (row.hardware, row.model, row.ep, row.gpus, row.routing) == ("h100", "qwen3-30b-a3b", 16, 16, "dropless")
    assert (row.level, row.latency_us) == ("layer", 10.0)


def test_an_own_record_without_status_ok_carries_no_figure(tmp_path: Path) -> None:
    failed = record(status=RunStatus.UNAVAILABLE, performance=None, correctness=None, reason="not installed")
    row = own_row(failed, tmp_path)
    assert (row.status, row.latency_us, row.reason) == ("unavailable", None, "not installed")


def test_nothing_found_says_which_condition_to_drop() -> None:
    answer = browse(Question(words={"model": "qwen3-235b-a22b", "hardware": "a100"}))
    assert answer.sections == ()
    assert answer.without["--hardware"] > answer.without["--model"] >= 1
    assert set(answer.without) == {"--model", "--hardware"}


def test_rows_without_a_date_are_counted_when_a_date_is_asked() -> None:
    (section,) = browse(Question(words={"model": "qwen3-235b-a22b", "since": "2026-01"}, kind="training")).sections
    undated = [row for row in ROWS if row.model == "qwen3-235b-a22b" and not row.date]
    assert section.undated == len(undated) > 0
