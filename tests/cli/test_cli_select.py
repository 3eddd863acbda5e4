"""A real `select` on two ranks, end to end, and what can be done with its store; Ctrl-C and resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.evidence.store import Store

pytestmark = pytest.mark.gloo

COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main"]
TINY = """\
model: {name: tiny, hidden: 64, num_layers: 2, num_moe_layers: 2, num_experts: 8, topk: 2, moe_ffn_hidden: 32}
layout: {ep: 2}
seq_length: 64
"""
OURS = ("alltoall", "allgather", "hierarchical")
START_LIMIT_S = 120.0


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=280, cwd=cwd
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Working folder of a finished `select --json` with two launches, and its output."""
    folder = tmp_path_factory.mktemp("select")
    (folder / "tiny.yaml").write_text(TINY)
    done = run("select", "tiny.yaml", "--launches", "2", "--budget", "300", "--out", "o", "--json", cwd=folder)
    return folder, done


def result_of(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(finished[1].stdout)
    return document


def test_select_reaches_a_verdict_and_writes_it(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = finished
    result = result_of(finished)
    assert "Traceback" not in done.stderr
    # Two launches are too few for any claim, and that is what the exit code says.
    assert result["verdict"]["kind"] == "inconclusive"
    assert done.returncode == 1
    assert json.loads((folder / "o" / "verdict.json").read_text())["session"] == result["session"]
    page = (folder / "o" / "report.html").read_text()
    assert result["session"] in page
    assert {arm["choice"]["dispatcher"] for arm in result["verdict"]["evidence"]} == set(OURS)
    assert all(arm["launches"] == 2 for arm in result["verdict"]["evidence"])
    assert result["configuration"]["megatron_lm_args"][:2] == ["--moe-token-dispatcher-type", "alltoall"]


def test_every_attempt_is_in_the_store(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    records = Store(folder / "o" / "store").read_all()
    stages = Counter((record.stage, record.status) for record in records)
    assert stages["gate", RunStatus.UNAVAILABLE] == 3  # deepep, hybridep, ncclep: not on a CPU
    assert stages["screen", RunStatus.OK] == 4  # each dispatcher, and alltoall's other form
    assert stages["decide", RunStatus.OK] == len(OURS) * 2 * 2  # arms x launches x routings
    assert sum(stages.values()) == 3 + 4 + 12
    assert {record.session for record in records} == {result_of(finished)["session"]}


def test_traffic_is_counted_and_expected(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    rows = {(row["routing"], row["name"]): row for row in result_of(finished)["traffic"]}
    copies = rows["force_balanced", "rows_copies"]
    assert copies["counted"] == copies["expected"] == 2 * 64 * 2  # ranks x tokens x top-k
    assert copies["row_bytes"] == 64 * 2


def test_compare_says_the_same_of_the_store(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    done = run("compare", folder / "o" / "store", "--json", cwd=folder)
    verdict = json.loads(done.stdout)["verdict"]
    expected = result_of(finished)["verdict"]
    assert done.returncode == 1
    assert verdict["kind"] == expected["kind"]
    assert verdict["statement"] == expected["statement"]


def test_report_from_the_store(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    done = run("report", "o/store", "-o", "again.html", cwd=folder)
    assert done.returncode == 1
    assert "inconclusive" in done.stdout
    assert (folder / "again.html").stat().st_size > 1_000_000  # plotly inside, nothing to load


def test_resume_of_a_finished_session_measures_nothing(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = finished
    store = Store(folder / "o" / "store")
    before = {record.run_id for record in store.read_all()}
    options = ("--launches", "2", "--budget", "300", "--out", "o", "--json")
    done = run("select", "tiny.yaml", *options, "--resume", "o/store", cwd=folder)
    assert json.loads(done.stdout)["session"] == result_of(finished)["session"]
    assert {record.run_id for record in store.read_all()} == before


def test_resume_refuses_another_workload_by_name(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    done = run("select", "tiny.yaml", "--seq-length", "128", "--resume", "o/store", "--out", "o", cwd=folder)
    assert done.returncode == 2
    assert "workload.seq_length was 64, is 128" in done.stderr
    assert "Traceback" not in done.stderr


def test_attested_field_that_does_not_exist(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    for command in (["compare", "o/store"], ["select", "tiny.yaml", "--out", "o", "--resume", "o/store"]):
        done = run(*command, "--attest", "stack.phase_of_moon", cwd=folder)
        assert done.returncode == 2
        assert "stack.phase_of_moon" in done.stderr
        assert "Traceback" not in done.stderr


def descendants(pid: int) -> list[int]:
    """Processes whose ancestor is `pid`, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return sorted(found)


def alive(pids: list[int]) -> list[int]:
    def is_alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in pids if is_alive(pid)]


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[tuple[Path, int, str, list[int]]]:
    """A `select` that got SIGINT in its deciding stage: folder, exit code, stderr, processes it had started."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = [*COMMAND, "select", "tiny.yaml", "--launches", "3", "--budget", "1000", "--skew", "none", "--out", "o"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        store, started = Store(tmp_path / "o" / "store"), time.monotonic()
        while not any(record.stage == "decide" for record in store.read_all()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() - started < START_LIMIT_S
            time.sleep(0.2)
        children = wait_for_children(process.pid)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        yield tmp_path, process.returncode, errors, children
    finally:
        if process.poll() is None:
            process.kill()


def wait_for_children(pid: int) -> list[int]:
    """Agent and both ranks of the next launch."""
    started = time.monotonic()
    while len(children := descendants(pid)) < 3:
        assert time.monotonic() - started < START_LIMIT_S
        time.sleep(0.1)
    return children


def test_ctrl_c_leaves_no_process_and_keeps_records_and_resumes(
    interrupted: tuple[Path, int, str, list[int]],
) -> None:
    folder, code, errors, children = interrupted
    assert code == 130
    assert "Traceback" not in errors
    assert errors.rstrip().endswith("moe-dispatch: interrupted; every finished record is kept")
    assert alive(children) == []
    before = Store(folder / "o" / "store").read_all()
    decided = [record for record in before if record.stage == "decide" and record.status is RunStatus.OK]
    assert {record.choice.dispatcher for record in decided if record.launch == 0} == set(OURS)
    options = ("--launches", "3", "--budget", "1000", "--skew", "none", "--out", "o", "--json")
    done = run("select", "tiny.yaml", *options, "--resume", "o/store", cwd=folder)
    result = json.loads(done.stdout)
    assert result["session"] == before[0].session
    after = Store(folder / "o" / "store").read_all()
    assert {record.run_id for record in before} <= {record.run_id for record in after}
    assert launches_of(after) == {(name, launch): 1 for name in OURS for launch in range(3)}


def launches_of(records: list[RunRecord]) -> dict[tuple[str, int], int]:
    """How often each (dispatcher, launch) of the deciding stage ended ok."""
    ok = [record for record in records if record.stage == "decide" and record.status is RunStatus.OK]
    return dict(Counter((record.choice.dispatcher, record.launch) for record in ok))


def test_bench_measures_what_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    options = (
        "--dispatcher",
        "hierarchical:chunks=2",
        "--dispatcher",
        "alltoall",
        "--visits",
        "2",
        "--iterations",
        "2",
    )
    done = run("bench", "tiny.yaml", *options, "--store", "s", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["records"]
    assert [record["choice"]["dispatcher"] for record in records] == ["hierarchical", "alltoall"]
    assert all(len(record["performance"]["iterations"]) == 4 for record in records)
    assert len(Store(tmp_path / "s").read_all()) == 2
