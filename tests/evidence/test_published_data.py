"""What is shipped has its form, carries exactly the findings that the checks give, and means what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moe_dispatch.core.errors import StoreError
from moe_dispatch.evidence.published import load_knob_pairs, load_pairs, load_recipes, load_training
from moe_dispatch.evidence.published.files import FILES, data_file, load, plain, row_of, text_of
from moe_dispatch.evidence.published.pairs import PairRow
from moe_dispatch.evidence.published.rows import RecipeRow, Row, TrainingRow
from moe_dispatch.evidence.published.schema import schema_text
from moe_dispatch.evidence.published.validate import Report, main, validate
from moe_dispatch.workload.catalogue import list_models

PACKAGE_DATA_LIMIT_BYTES = 3_000_000
ROOT = Path(__file__).parents[2]

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def shipped() -> Report:
    return validate()


def test_shipped_data_is_in_form_in_order_and_carries_the_findings_of_today(shipped: Report) -> None:
    assert shipped.problems == ()


def test_every_row_names_a_source_and_every_kind_has_rows(shipped: Report) -> None:
    assert all(rows for rows in shipped.rows.values())
    assert all(row.source for rows in shipped.rows.values() for row in rows)


def test_all_data_files_stay_under_the_limit() -> None:
    assert sum(path.stat().st_size for path in data_file("").iterdir()) < PACKAGE_DATA_LIMIT_BYTES


def test_exported_schema_is_current() -> None:
    assert (ROOT / "docs/schema/published-evidence.schema.json").read_text(encoding="utf-8") == schema_text()


def test_the_page_explains_every_label_and_every_finding(shipped: Report) -> None:
    page = (ROOT / "docs/evidence.md").read_text(encoding="utf-8")
    rows = [row for rows in shipped.rows.values() for row in rows]
    words = {label for row in rows for label in row.labels} | {each.check for row in rows for each in row.findings}
    assert not {word for word in words if f"`{word}`" not in page}


def test_models_of_the_catalogue_go_by_its_names_and_not_by_aliases(shipped: Report) -> None:
    aliases = {alias for entry in list_models() for alias in entry.aliases} - {entry.name for entry in list_models()}
    assert not {row.model for rows in shipped.rows.values() for row in rows} & aliases


def test_pages_that_never_state_a_dispatcher_have_none_stated() -> None:
    summary = [row for row in load_training() if row.group == "mb_perf_summary"]
    assert summary
    assert not [row.id for row in summary if row.dispatcher_stated]
    assert {row.basis for row in summary} == {"inferred", "unknown"}


def test_speedup_of_times_and_of_throughputs_both_read_higher_is_faster() -> None:
    pairs = {pair.id: pair for pair in load_pairs()}
    times = pairs["ab-aws-dsv3-b300-256-mb4-off-a2a-vs-uccl"]
    assert (times.metric, times.winner) == ("step_time_s", times.treatment)
    assert times.speedup == pytest.approx(9.774 / 6.263)
    throughput = pairs["ab-dsv3-gb200-deepep-vs-hybridep"]
    assert (throughput.metric, throughput.winner) == ("tflops_per_gpu", throughput.treatment)
    assert throughput.speedup == pytest.approx(943.56 / 829.93)
    memory_only = pairs["ab-automodel3827-memory"]
    assert (memory_only.speedup, memory_only.winner, memory_only.margin) == (None, None, None)


def test_a_pair_with_confounders_does_not_count_as_the_same_stack() -> None:
    pairs = {pair.id: pair for pair in load_pairs()}
    assert not pairs["ab-ncclep-gptoss-gb300"].same_stack
    assert pairs["ab-aws-dsv3-b300-256-mb4-off-a2a-vs-uccl"].same_stack


def test_a_derived_step_time_is_never_stored_as_published() -> None:
    row = next(row for row in load_training() if row.id == "mbsum-26.08-deepseek_v3-gb300-fp8mx-256g")
    assert row.step_time_s is None
    assert row.step_s == pytest.approx(4096 * 4096 / (6288 * 256))


def test_recipes_say_where_their_dispatcher_comes_from() -> None:
    recipes = {row.recipe: row for row in load_recipes() if row.series == "performance"}
    tuned = recipes["qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"]
    assert (tuned.dispatcher, tuned.num_sms, tuned.basis) == ("hybridep", 32, "stated")
    by_default = recipes["qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config"]
    assert (by_default.dispatcher, by_default.ep_overlap) == ("alltoall", True)
    assert {row.basis for row in load_recipes() if row.dispatcher_from == "framework default"} == {"inferred"}


def test_knob_pairs_keep_the_dispatcher() -> None:
    for pair in load_knob_pairs():
        assert pair.baseline.dispatcher == pair.treatment.dispatcher, pair.id


@pytest.mark.parametrize(
    ("row", "check"),
    [
        ("mbsum-25.09-deepseek_v3-gb200-fp8altgranularity-256g-alt", "layout"),
        ("mbskill-hw-dsv3-b200-256-bf16", "mfu"),
        ("mbsum-26.04-gpt_oss_120b-h100-bf16-64g", "flops"),
    ],
)
def test_published_rows_that_contradict_themselves_are_shipped_with_the_finding(row: str, check: str) -> None:
    found = next(each for each in load_training() if each.id == row)
    assert check in [finding.check for finding in found.findings]


def copied(folder: Path, name: str, identifier: str, change: Change) -> Report:
    """The validator's report on a copy of the data in which one row is changed."""
    for each in FILES:
        document = json.loads(data_file(each).read_text(encoding="utf-8"))
        if each == name:
            change(next(row for row in document["rows"] if row["id"] == identifier))
        (folder / each).write_text(json.dumps(document), encoding="utf-8")
    return validate(folder)


CLEAN = "mbskill-q30b-h100-hybridep-ov"
CARD = "mbcard-qwen3-30b-a3b-pretrain_performance-h100"
EFA = "aws-q235b-b300-64-ep32-mb4-off-alltoall"
PAIR = "ab-aws-q235b-b300-64-ep32-mb4-off-a2a-vs-uccl"
RECIPE = "perf-qwen3-30b-a3b-pretrain-16gpu-h100-bf16"


@pytest.mark.parametrize(
    ("name", "identifier", "fields", "check"),
    [
        ("training.json", CLEAN, {"tflops_per_gpu": -1.0}, "number"),
        ("training.json", CLEAN, {"mfu": 21.0}, "number"),
        ("training.json", CLEAN, {"pp": 3}, "layout"),
        ("training.json", CLEAN, {"ep": 12}, "experts"),
        ("training.json", CLEAN, {"global_batch": 1000}, "batch"),
        ("training.json", CARD, {"step_time_s": 21.0}, "tokens"),
        ("training.json", EFA, {"tokens_per_s": 70000.0}, "tokens"),
        ("training.json", CLEAN, {"seq_length": 8192}, "flops"),
        ("training.json", CLEAN, {"tflops_per_gpu": 1200.0}, "peak"),
        ("training.json", CLEAN, {"mfu": 0.4}, "mfu"),
        ("training.json", CLEAN, {"peak_memory_bytes": 90_000_000_000}, "memory"),
        ("training.json", EFA, {"pp": 4}, "arms"),
        ("training.json", EFA, {"step_time_s": 15.7}, "arm"),
        ("pairs.json", PAIR, {"baseline": {"row": "nowhere", "dispatcher": "alltoall"}}, "arm"),
        ("recipes.json", RECIPE, {"dispatcher": "deepep"}, "dispatcher"),
        ("recipes.json", RECIPE, {"environment": {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "16"}}, "domain"),
    ],
)
def test_each_check_sees_the_mistake_it_is_for(
    tmp_path: Path, name: str, identifier: str, fields: dict[str, Any], check: str, shipped: Report
) -> None:
    before = counts(shipped, check)
    report = copied(tmp_path, name, identifier, lambda row: row.update(fields))
    assert counts(report, check) > before
    assert any(problem.startswith(name) or "use --write" in problem for problem in report.problems)


def counts(report: Report, check: str) -> int:
    return sum(finding.check == check for rows in report.rows.values() for row in rows for finding in row.findings)


def test_a_row_told_twice_is_found(tmp_path: Path, shipped: Report) -> None:
    other = json.loads(data_file("training.json").read_text(encoding="utf-8"))["rows"]
    figures = next(row for row in other if row["id"] == CLEAN)

    def tell_again(row: dict[str, Any]) -> None:
        row.clear()
        row.update({**figures, "id": CARD})

    assert counts(copied(tmp_path, "training.json", CARD, tell_again), "twice") == counts(shipped, "twice") + 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": "somewhere"}, "source 'somewhere' is no owner/repo@commit:path"),
        ({"date": "July 2026"}, "is no ISO day or month"),
        ({"date": "2031-01-01"}, "is after the day of collection"),
        ({"date_basis": ""}, "date and date_basis go together"),
        ({"gpus": "16"}, "gpus: Input should be a valid integer"),
        ({"routing": "balanced"}, "routing: Input should be"),
        ({"labels": ["benchmark_only"]}, "label forced_balance"),
        ({"hardware": "H100"}, "'H100' is not in kebab form"),
        ({"dispatcher_inferred": "deepep", "inference": "same layout"}, "a stated dispatcher needs no inferred one"),
    ],
)
def test_a_row_of_wrong_form_is_a_problem_that_names_it(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    problems = copied(tmp_path, "training.json", CLEAN, lambda row: row.update(fields)).problems
    assert any(said in problem and CLEAN in problem for problem in problems), problems


def test_an_unknown_field_is_refused_with_the_row(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"row {CLEAN}.*num_gpus"):
        copied(tmp_path, "training.json", CLEAN, lambda row: row.update(num_gpus=16))


def test_an_id_that_stands_twice_is_a_problem(tmp_path: Path) -> None:
    problems = copied(tmp_path, "training.json", CLEAN, lambda row: row.update(id=CARD)).problems
    assert f"id {CARD} stands 2 times" in problems


@pytest.mark.parametrize(("text", "said"), [("[", "is not JSON"), ('{"schema_version": 9}', "has schema version 9")])
def test_a_broken_file_gives_one_message(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "training.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=said):
        load(TrainingRow, path)


@pytest.mark.parametrize("row_class", [TrainingRow, PairRow, RecipeRow])
def test_a_row_survives_writing_and_reading(row_class: type[Row]) -> None:
    rows = load(row_class)
    lines = json.loads(text_of(rows, "2026-08-24"))["rows"]
    assert [plain(row) for row in rows] == lines
    assert tuple(row_of(row_class, line, Path("again")) for line in lines) == rows


def test_the_command_reports_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == []
    assert {"file", "id", "check", "detail"} == set(report["findings"][0])
    assert len(report["findings"]) == sum(len(row.findings) for rows in validate().rows.values() for row in rows)
