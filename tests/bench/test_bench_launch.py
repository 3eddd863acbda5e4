"""Real launches of real dispatchers: what is measured, and how a launch ends when the user or the machine ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from bench_helpers import ALLTOALL, HIERARCHICAL, TINY, faulty, tiny_plan

from moe_dispatch.bench.procs import MARKER
from moe_dispatch.bench.run import BenchRequest, run_bench
from moe_dispatch.core.errors import LaunchError, StoreError
from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.evidence.store import Store
from moe_dispatch.workload.routing import RoutingSpec, generate

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(150)]
ROUTINGS = ("force_balanced", "zipf:1.5")


def measured(folder: Path, level: str) -> list[RunRecord]:
    plan = tiny_plan(ALLTOALL, HIERARCHICAL, level=level, routings=ROUTINGS, warmup=2)
    return run_bench(
        BenchRequest(plan=plan, launches=1, nproc=2, work_dir=str(folder / "work")), Store(folder / "store")
    )


@pytest.fixture(scope="module", params=["exchange", "layer"])
def records(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return measured(tmp_path_factory.mktemp(request.param), request.param)


def test_all_arms_pass_the_oracle_and_are_timed(records: list[RunRecord]) -> None:
    assert [(r.choice.dispatcher, r.status) for r in records] == [
        ("alltoall", RunStatus.OK),
        ("alltoall", RunStatus.OK),
        ("hierarchical", RunStatus.OK),
        ("hierarchical", RunStatus.OK),
    ]
    for record in records:
        assert record.correctness is not None
        assert all(record.correctness.checks.values())
        assert record.performance is not None
        iterations = record.performance.iterations
        assert [i.pass_index for i in iterations] == [0] * 4 + [1] * 4
        for iteration in iterations:
            parts = iteration.latency_us
            assert set(parts) == {"forward", "backward", "total"}
            # Each phase is the maximum over ranks by itself, so the parts bound the whole from both sides.
            assert max(parts["forward"], parts["backward"]) <= parts["total"]
            assert parts["total"] <= parts["forward"] + parts["backward"] + 0.002


def test_rows_are_those_of_the_generated_routing(records: list[RunRecord]) -> None:
    """Independent count: pairs, distinct owners and foreign owners by plain Python."""
    for record, text in zip(records[:2], ROUTINGS, strict=True):
        copies = off_rank = distinct = distinct_off = 0
        for rank in range(2):
            ids, _ = generate(RoutingSpec.parse(text), 32, TINY.num_experts, TINY.topk, 0, rank)
            for token in np.asarray(ids).tolist():
                owners = [expert // 2 for expert in token]
                copies += len(owners)
                off_rank += sum(owner != rank for owner in owners)
                distinct += len(set(owners))
                distinct_off += len(set(owners) - {rank})
        assert record.traffic is not None
        assert record.traffic.row_bytes == TINY.hidden * 4
        assert (record.traffic.rows_copies, record.traffic.rows_copies_off_rank) == (copies, off_rank)
        assert (record.traffic.rows_rank, record.traffic.rows_rank_off_rank) == (distinct, distinct_off)
        assert record.traffic.rows_domain_off_domain == 0


def test_contract_and_provenance_say_what_ran(records: list[RunRecord]) -> None:
    record = records[0]
    assert record.contract.site["transport"] == "gloo"
    assert (record.contract.site["ranks"], record.contract.site["nodes"]) == (2, 1)
    assert record.contract.stack["torch"]
    assert "benchmark_only" in record.labels
    assert "scaled_tokens" not in record.labels
    assert record.provenance.environment["OMP_NUM_THREADS"] == "1"
    assert record.provenance.environment["GLOO_SOCKET_IFNAME"]
    assert record.provenance.provider.endswith("AllToAllDispatcher")
    assert record.contract == records[2].contract
    assert record.contract != records[1].contract


def test_budget_scales_tokens_of_all_arms_alike(tmp_path: Path) -> None:
    plan = tiny_plan(ALLTOALL, HIERARCHICAL, tokens_per_rank=1 << 20, min_tokens=64, time_budget_s=1e-3)
    request = BenchRequest(plan=plan, launches=1, nproc=2, work_dir=str(tmp_path / "work"))
    records = run_bench(request, Store(tmp_path / "store"))
    assert {record.contract.workload["tokens_per_rank"] for record in records} == {64}
    assert {record.contract.workload["tokens_per_rank_requested"] for record in records} == {1 << 20}
    assert all("scaled_tokens" in record.labels for record in records)
    assert all(record.traffic is not None and record.traffic.rows_copies == 2 * 64 * 2 for record in records)


def test_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        request = BenchRequest(plan=tiny_plan(ALLTOALL), launches=1, nproc=2, port=port)
        with pytest.raises(LaunchError, match=f"port {port} is in use"):
            run_bench(request, Store(tmp_path / "store"))
    assert Store(tmp_path / "store").read_all() == []


SCRIPT = """
import sys
from bench_helpers import ALLTOALL, faulty, tiny_plan
from moe_dispatch.bench.run import BenchRequest, run_bench
from moe_dispatch.evidence.store import Store
plan = tiny_plan(ALLTOALL, faulty("HangDispatcher"), arm_timeout_s=300.0)
request = BenchRequest(plan=plan, launches=1, nproc=2, work_dir=sys.argv[1] + "/work")
seen = []
def heard(event):
    seen.append(event.kind)
    if event.kind == "visit" and seen.count("visit") == 2:
        print("measuring", flush=True)
try:
    run_bench(request, Store(sys.argv[1] + "/store"), heard)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def start_hanging_session(folder: Path) -> subprocess.Popen[str]:
    """A process that measures until its second arm hangs; returns once a rank hangs or is about to."""
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env={**os.environ, "PYTHONPATH": here},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "measuring\n"
    return process


def ranks_of(launcher: int) -> list[int]:
    mine = f"MOE_DISPATCH_LAUNCHER_PID={launcher}".encode()
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if mine in environment(process)]


def environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def test_interrupt_keeps_what_is_finished_and_leaves_no_process(tmp_path: Path) -> None:
    process = start_hanging_session(tmp_path)
    assert len(ranks_of(process.pid)) >= 3  # the agent and two ranks
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert process.returncode == 0
    assert ranks_of(process.pid) == []
    records = {record.choice.dispatcher: record for record in Store(tmp_path / "store").read_all()}
    assert records["HangDispatcher"].status is RunStatus.INTERRUPTED
    assert records["HangDispatcher"].partial is not None
    assert records["alltoall"].status in (RunStatus.OK, RunStatus.INTERRUPTED)


def test_ranks_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    process = start_hanging_session(tmp_path)
    assert len(ranks_of(process.pid)) >= 3
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while ranks_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ranks_of(process.pid) == []


def test_ranks_that_never_start_are_a_launch_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('LOCAL_RANK') == '1' and os.environ.get('" + MARKER + "'): os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    request = BenchRequest(plan=tiny_plan(ALLTOALL), launches=1, nproc=2, work_dir=str(tmp_path / "work"))
    with pytest.raises(LaunchError, match="no dispatcher is to blame") as caught:
        run_bench(request, Store(tmp_path / "store"))
    assert "rank 1" in caught.value.message
    assert "code 7" in caught.value.message


def test_unwritable_work_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file")
    request = BenchRequest(plan=tiny_plan(ALLTOALL), launches=1, nproc=2, work_dir=str(tmp_path / "work"))
    with pytest.raises(StoreError, match="folder of this launch cannot be written"):
        run_bench(request, Store(tmp_path / "store"))


def test_routing_that_one_rank_cannot_read_blames_no_arm(tmp_path: Path) -> None:
    trace = tmp_path / "trace.npy"
    np.save(trace, np.full((8, 3), 1))
    plan = tiny_plan(ALLTOALL, routings=(f"trace:{trace}",))
    request = BenchRequest(plan=plan, launches=1, nproc=2, work_dir=str(tmp_path / "work"))
    with pytest.raises(LaunchError, match="no dispatcher is to blame"):
        run_bench(request, Store(tmp_path / "store"))
    assert Store(tmp_path / "store").read_all() == []


def test_unwritable_store_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    request = BenchRequest(
        plan=tiny_plan(ALLTOALL, faulty("unused")), launches=1, nproc=2, work_dir=str(tmp_path / "w")
    )
    with pytest.raises(StoreError):
        run_bench(request, Store(tmp_path / "store"))
    assert not (tmp_path / "w").exists()
