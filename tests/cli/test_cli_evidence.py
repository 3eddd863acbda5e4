"""The `evidence` command: sections for people, JSON and CSV for machines, one message for bad input."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main", "evidence"]


def run(*arguments: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120, cwd=cwd)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def load(*arguments: str, cwd: Path) -> Any:
    return json.loads(run(*arguments, "--json", cwd=cwd))


def test_without_a_question_it_says_what_there_is(tmp_path: Path) -> None:
    overview = load(cwd=tmp_path)
    assert [each["kind"] for each in overview["kinds"]] == ["training", "ab", "knob", "recipe", "micro"]
    assert overview["collected"] in run(cwd=tmp_path)


def test_sections_are_titled_and_inferred_dispatchers_marked(tmp_path: Path) -> None:
    shown = run("--model", "qwen3-235b-a22b", "--hardware", "h100", "--limit", "0", cwd=tmp_path)
    assert "Published training steps: 24" in shown
    assert "Recipes in force (configuration, not measurement)" in shown
    assert "all: model qwen3-235b-a22b, on 256 x h100" in shown
    assert "alltoall~" in shown
    assert "~ dispatcher inferred, not stated" in shown


def test_json_holds_every_matching_row_with_its_basis(tmp_path: Path) -> None:
    found = load("--dispatcher", "ncclep", "--kind", "ab", cwd=tmp_path)["sections"]["ab"]
    assert found["total"] == len(found["rows"]) == 2
    assert {row["winner"] for row in found["rows"]} == {"ncclep", "hybridep"}
    assert {row["isolation"] for row in found["rows"]} == {"confounded", "near"}
    assert all(row["source"] and row["basis"] for row in found["rows"])


def test_csv_has_a_line_for_each_row_and_a_column_for_each_field(tmp_path: Path) -> None:
    said = run("--kind", "ab", "--csv", "out.csv", cwd=tmp_path)
    with (tmp_path / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert f"{len(lines)} rows written to out.csv" in said
    pair = next(line for line in lines if line["id"] == "ab-aws-dsv3-b300-256-mb4-off-a2a-vs-uccl")
    assert (pair["baseline_value"], pair["treatment_value"], pair["metric"]) == ("9.774", "6.263", "step_time_s")
    assert pair["winner"] == "deepep (uccl-ep)"
    assert pair["labels"] == "benchmark_only; forced_balance; single_run"


def test_one_row_is_shown_with_its_source_and_findings(tmp_path: Path) -> None:
    shown = run("mbskill-hw-dsv3-b200-256-bf16", cwd=tmp_path)
    assert "NVIDIA-NeMo/Megatron-Bridge@ad4138a1d:skills/perf-techniques/moe-hardware-configs/card.yaml" in shown
    assert "mfu: MFU 0.206, but 516 of 2250 TFLOP/s is 0.229" in shown


def test_closest_explains_every_distance(tmp_path: Path) -> None:
    options = ("--closest", "qwen3-235b-a22b", "--ep", "64", "--site", "gb200", "--nodes", "16", "--precision", "mxfp8")
    sections = load(*options, "--limit", "5", cwd=tmp_path)["sections"]
    assert set(sections) == {"training", "ab", "knob", "recipe"}
    for section in sections.values():
        for row in section["rows"]:
            assert row["distance"] == pytest.approx(sum(each["adds"] for each in row["differences"]))
    shown = run(*options, "--limit", "2", "--kind", "ab", cwd=tmp_path)
    nearest = sections["ab"]["rows"][0]
    assert nearest["id"] in shown
    assert f"{nearest['distance']:.2f}" in shown
    assert "how it differs" in shown


def test_nothing_found_helps_and_is_no_failure(tmp_path: Path) -> None:
    shown = run("--model", "qwen3-235b-a22b", "--hardware", "a100", cwd=tmp_path)
    assert "No evidence matches all conditions." in shown
    assert "without --hardware:" in shown
    assert load("--model", "qwen3-235b-a22b", "--hardware", "a100", cwd=tmp_path)["sections"] == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing-like-this",), "no evidence has the id 'nothing-like-this'"),
        (("ab-aws-dsv3-b300-256-mb4-off-a2a-vs-uccl", "--ep", "8"), "--ep does not go with it"),
        (("--sort", "step_s"), "--sort 'step_s' needs --kind"),
        (("--closest", "qwen3-30b-a3b"), "no expert-parallel size is given"),
        (("--closest", "qwen3-30b-a3b", "--ep", "16", "--model", "x"), "--model does not go with --closest"),
        (("--closest", "qwen3-30b-a3b", "--ep", "16", "--nodes", "2"), "--nodes counts the nodes of a site"),
        (("--closest", "qwen3-30b-a3b", "--ep", "16", "--site", "h101"), "unknown site 'h101'"),
        (("--site", "h100"), "--site describes where a workload runs"),
        (("--kind", "own"), "--kind own needs a store"),
        (("--ep", "0"), "--ep 0 must be at least 1"),
        (
            ("--closest", "qwen3-30b-a3b", "--ep", "16", "--site", "h100", "--nodes", "0"),
            "--nodes 0 must be at least 1",
        ),
        (("--own", "nowhere"), "store nowhere does not exist"),
        (("--kind", "ab", "--csv", "no/such/folder.csv"), "--csv no/such/folder.csv cannot be written"),
        (("--limit", "-1"), "--limit -1 must be 0 or more"),
    ],
)
def test_bad_input_gives_one_message(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    message = run(*arguments, cwd=tmp_path, code=2)
    assert said in message
    assert message.count("moe-dispatch: ") == 1
    assert "\n  fix: " in message


def test_no_torch_and_no_numpy_for_a_search(tmp_path: Path) -> None:
    code = (
        "import sys; from moe_dispatch.cli.main import main\n"
        "try: main(['evidence', '--model', 'gpt-oss-120b', '--limit', '2'])\n"
        "except SystemExit: print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"
