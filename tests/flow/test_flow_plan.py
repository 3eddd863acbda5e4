"""From `plan` to `compare`: a folder is written, its arms run with a stand-in trainer, its logs judged."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from moe_dispatch.cli.main import main
from moe_dispatch.core.errors import StoreError, UsageError
from moe_dispatch.flow.plan import PlanRequest, make_plan
from moe_dispatch.flow.plan_runs import records_of_plan

TRAINER = Path(__file__).parents[1] / "megatron/stand_in_trainer.py"
MODEL = {"workload": "qwen3-30b-a3b", "sizes": {"ep": 8}, "site": "h100"}


def run_stage(tmp_path: Path, stage: str, means: str, *more: str, **given: object) -> Path:
    """A plan of one node whose stage was run; `means` are the stand-in's step times in ms."""
    out = tmp_path / "plan"
    make_plan(PlanRequest(**MODEL, **{"dispatchers": ("hybridep", "deepep"), **given, "out": str(out)}))  # type: ignore[arg-type]
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "torchrun").write_text(f'#!/usr/bin/env bash\nexec {sys.executable} {TRAINER} {means} "$@"\n')
    (binaries / "torchrun").chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    env = kept | {"PATH": f"{binaries}:{os.environ['PATH']}", "MEGATRON_LM": str(tmp_path)}
    done = subprocess.run([str(out / "run.sh"), stage, *more], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments, "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)["verdict"]


def test_the_faster_backend_wins_and_nothing_more_has_to_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run_stage(tmp_path, "decide", "alltoall=1000,hybridep=900,deepep=990")
    records, findings = records_of_plan(out)
    assert findings == []
    assert {(record.choice.dispatcher, record.launch) for record in records} == {
        (name, launch) for name in ("alltoall", "hybridep", "deepep") for launch in range(5)
    }
    for record in records:
        assert record.performance is not None
        assert {one.pass_index for one in record.performance.iterations} == {0, 1}
        assert len(record.performance.iterations) == 2 * 20  # two visits of 30 steps, ten of warm-up
        times = [one.latency_us["total"] / 1e3 for one in record.performance.iterations]
        assert record.training is not None
        assert record.training.metrics is not None
        assert record.training.metrics.mean_ms == pytest.approx(statistics.fmean(times))
        assert record.contract.site["hosts"] == [os.uname().nodename]
    # A machine without a driver cannot say its version: the one thing left to vouch for here.
    code, verdict = compared(capsys, str(out), "--attest", "stack.driver")
    assert code == 0
    assert verdict["kind"] == "winner"
    assert verdict["winner"]["dispatcher"] == "hybridep"  # type: ignore[index]


def test_ingest_reads_the_same_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_stage(tmp_path, "decide", "alltoall=1000,hybridep=900,deepep=990", launches=1)
    with pytest.raises(SystemExit) as ended:
        main(["ingest", str(out), "--store", str(tmp_path / "store")])
    assert not ended.value.code
    assert "hybridep" in capsys.readouterr().out
    code, verdict = compared(capsys, str(tmp_path / "store"), "--attest", "stack.driver")
    assert code == 1
    assert verdict["kind"] == "inconclusive"
    assert len(verdict["evidence"]) == 3  # type: ignore[arg-type]


def test_a_launch_that_lacks_runs_is_named(tmp_path: Path) -> None:
    out = run_stage(tmp_path, "decide", "alltoall=1000,hybridep=900,deepep=990", launches=2)
    gone = next(out.glob("logs/decide/01-*-decide-hybridep.log"))
    gone.unlink()
    records, (finding,) = records_of_plan(out)
    assert finding.id == "planned-run-missing"
    assert gone.name in finding.message
    assert len(records) == 6


def test_visits_that_fell_back_stand_alone_and_carry_no_time(tmp_path: Path) -> None:
    out = run_stage(tmp_path, "decide", "alltoall=1000,hybridep=900,deepep=990", launches=1)
    (first, _) = sorted(out.glob("logs/decide/*hybridep.log"))
    text = first.read_text().replace("moe_token_dispatcher_type ", "moe_token_dispatcher_typo ")
    first.write_text(text)
    records, _ = records_of_plan(out)
    hybrid = [record for record in records if record.choice.dispatcher == "hybridep" or record.status.value != "ok"]
    assert sorted(record.status.value for record in hybrid)[-1] == "ok"
    assert len(hybrid) == 2
    assert sum(record.performance is not None for record in hybrid) == 1


def test_stages_are_told_apart(tmp_path: Path) -> None:
    out = run_stage(tmp_path, "accept", "alltoall=1000,hybridep=900,deepep=990", "hybridep")
    records, findings = records_of_plan(out)
    assert {record.stage for record in records} == {"accept"}
    assert {record.choice.dispatcher for record in records} == {"alltoall", "hybridep"}
    assert len(findings) == 1  # the arms of the other backend were not wanted
    with pytest.raises(StoreError, match="tune"):
        records_of_plan(out, "tune")


def test_a_plan_without_logs_says_what_to_do(tmp_path: Path) -> None:
    make_plan(PlanRequest(**MODEL, out=str(tmp_path / "plan")))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="without logs"):
        records_of_plan(tmp_path / "plan")


def test_absent_backends_are_left_out_with_the_reason() -> None:
    plan, files = make_plan(PlanRequest(**MODEL, absent=("hybridep=not in our image", "deepep")))  # type: ignore[arg-type]
    assert files == ()
    assert plan.left_out["hybridep"] == "not in our image"
    assert "deepep" in plan.left_out


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"framework": "nemo"}, "megatron-lm"),
        ({"threshold": 1.5}, "threshold"),
        ({"dispatchers": ("deepp",)}, "deepp"),
        ({"site": "h1000"}, "h1000"),
    ],
)
def test_bad_requests_are_refused_by_name(given: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        make_plan(PlanRequest(**{**MODEL, **given}))  # type: ignore[arg-type]


def test_this_machine_leaves_out_what_its_gate_refuses() -> None:
    plan, _ = make_plan(PlanRequest(workload="qwen3-30b-a3b", sizes={"ep": 8, "world": 8}, dispatchers=("hybridep",)))
    assert "not installed" in plan.left_out["hybridep"]
