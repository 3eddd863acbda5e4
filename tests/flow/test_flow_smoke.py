"""`smoke` and `bench --level train` as a user runs them, with two ranks on this host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moe_dispatch.cli.main import main

SMALL = ("qwen3-30b-a3b", "--ep", "2", "--steps", "4")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.gloo
def test_smoke_trains_what_can_run_and_records_what_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(
        capsys, "smoke", *SMALL, "--dispatcher", "hierarchical", "--dispatcher", "hybridep", "--out", str(tmp_path)
    )
    records = {record["choice"]["dispatcher"]: record for record in found["records"]}
    assert {name: record["status"] for name, record in records.items()} == {
        "alltoall": "ok",
        "hierarchical": "ok",
        "hybridep": "unavailable",
    }
    first = [records[name]["training"]["loss"]["first"] for name in ("alltoall", "hierarchical")]
    assert first[0] == pytest.approx(first[1], rel=1e-3)
    assert records["hybridep"]["performance"] is None
    assert code == 1  # a backend that was asked for is not there


@pytest.mark.gloo
def test_bench_trains_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "bench", *SMALL, "--level", "train", "--dispatcher", "alltoall", "--out", str(tmp_path))
    assert code == 0
    assert [record["contract"]["measure"]["level"] for record in found["records"]] == ["training_step"]


def test_options_of_another_level_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "bench", "qwen3-30b-a3b", "--ep", "2", "--steps", "5", "--out", str(tmp_path))
    assert code == 2
    assert "steps" in found["error"]["message"]
