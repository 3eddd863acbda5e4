"""Every way an arm can fail ends in the right status, costs the other arms nothing, and leaves no process behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench_helpers import ALLTOALL, MemoryStore, faulty, tiny_plan

from moe_dispatch.bench.run import BenchRequest, run_bench
from moe_dispatch.evidence.record import RunRecord, RunStatus

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(600)]
STRAGGLER_US = 50_000


class Session:
    """Records of one request over several arms, by arm, and what was left when it was over."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.store = MemoryStore()
        plan = tiny_plan(ALLTOALL, *(faulty(name) for name in names), arm_timeout_s=15.0)
        request = BenchRequest(plan=plan, launches=1, nproc=2, work_dir=str(folder))
        self.records = run_bench(request, self.store)
        self.survivors = living_ranks()

    def __getitem__(self, name: str) -> RunRecord:
        (record,) = [record for record in self.records if record.choice.dispatcher == name]
        return record

    def log_of(self, name: str) -> bytes:
        return self.store.files[self[name].run_id]["launch.log"]


def living_ranks() -> list[Path]:
    """Processes that any launch of this test process started."""
    mine = f"MOE_DISPATCH_LAUNCHER_PID={os.getpid()}".encode()
    return [process for process in Path("/proc").glob("[0-9]*") if mine in environment(process)]


def environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, ranks_find_faulty_backends: None) -> Session:
    """Faults on which all ranks agree: one set of processes serves them all."""
    names = ("WrongRowsDispatcher", "RefusingDispatcher", "NoSuchDispatcher", "StragglerDispatcher")
    return Session(tmp_path_factory.mktemp("quiet"), *names)


@pytest.fixture(scope="module")
def violent(tmp_path_factory: pytest.TempPathFactory, ranks_find_faulty_backends: None) -> Session:
    """Faults that end the processes: each costs one launch."""
    names = ("KillDispatcher", "HangDispatcher", "OutOfMemoryDispatcher", "AddressSpaceDispatcher", "ErrorDispatcher")
    return Session(tmp_path_factory.mktemp("violent"), *names, "LoneRefuserDispatcher")


@pytest.mark.parametrize("kind", ["quiet", "violent"])
def test_healthy_arm_is_complete_and_nothing_survives(kind: str, request: pytest.FixtureRequest) -> None:
    session: Session = request.getfixturevalue(kind)
    healthy = session["alltoall"]
    assert healthy.status is RunStatus.OK
    assert healthy.performance is not None
    assert len(healthy.performance.iterations) == 8
    assert session.survivors == []
    assert session.records == session.store.records


def test_killed_rank_is_crashed(violent: Session) -> None:
    record = violent["KillDispatcher"]
    assert record.status is RunStatus.CRASHED
    assert "rank 1 on" in record.reason
    assert "SIGKILL" in record.reason
    assert "phase measure" in record.reason
    assert record.performance is None
    assert record.partial is not None
    assert len(record.partial.iterations) == 4
    assert violent.log_of("KillDispatcher")


def test_hanging_rank_is_timeout_and_named(violent: Session) -> None:
    record = violent["HangDispatcher"]
    assert record.status is RunStatus.TIMEOUT
    assert "no rank made progress for 15 s" in record.reason
    assert record.reason.endswith("not waiting for the others: rank 1 on " + record.provenance.host)
    assert b"misbehave" in violent.log_of("HangDispatcher")


def test_out_of_memory_is_oom(violent: Session) -> None:
    record = violent["OutOfMemoryDispatcher"]
    assert record.status is RunStatus.OOM
    assert "Tried to allocate 20.00 GiB" in record.reason
    assert "tokens" in record.fix


def test_failing_allocator_is_oom(violent: Session) -> None:
    record = violent["AddressSpaceDispatcher"]
    assert record.status is RunStatus.OOM
    assert "rank 1" in record.reason


def test_exception_is_crashed_with_its_text(violent: Session) -> None:
    record = violent["ErrorDispatcher"]
    assert record.status is RunStatus.CRASHED
    assert "ValueError: a bug in the backend" in record.reason


def test_lone_refusal_does_not_hang_the_session(violent: Session) -> None:
    record = violent["LoneRefuserDispatcher"]
    assert record.status is RunStatus.UNSUPPORTED
    assert "rank 1" in record.reason


def test_wrong_rows_are_incorrect_and_never_timed(quiet: Session) -> None:
    record = quiet["WrongRowsDispatcher"]
    assert record.status is RunStatus.INCORRECT
    assert record.partial is None
    assert record.correctness is not None
    assert not record.correctness.passed
    assert not record.correctness.checks["uniform/dispatch"]


def test_refusal_decided_together_is_unsupported(quiet: Session) -> None:
    record = quiet["RefusingDispatcher"]
    assert record.status is RunStatus.UNSUPPORTED
    assert record.reason.startswith("refusing: this device is too old")
    assert record.fix == "use alltoall"


def test_missing_class_is_unavailable(quiet: Session) -> None:
    record = quiet["NoSuchDispatcher"]
    assert record.status is RunStatus.UNAVAILABLE
    assert "faulty_backends:NoSuchDispatcher" in record.reason


def test_straggler_is_measured_and_named(quiet: Session) -> None:
    record = quiet["StragglerDispatcher"]
    assert record.status is RunStatus.OK
    assert record.performance is not None
    assert {iteration.slowest_rank for iteration in record.performance.iterations} == {1}
    assert min(iteration.latency_us["total"] for iteration in record.performance.iterations) >= STRAGGLER_US
