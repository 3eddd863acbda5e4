from __future__ import annotations

import signal

import pytest

from moe_dispatch.bench.classify import EXIT_STORAGE, Cause, ErrorKind, RankExit, classify, error_kind
from moe_dispatch.bench.control import root_failure
from moe_dispatch.bench.progress import Position, RankError
from moe_dispatch.core.errors import MissingDependency, UnsupportedByBackend, UsageError
from moe_dispatch.evidence.record import RunStatus


class OutOfMemoryError(RuntimeError):
    """Named like torch's, which this layer must recognise without importing it."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), ErrorKind.OOM),
        (MemoryError(), ErrorKind.OOM),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), ErrorKind.OOM),
        (OSError(12, "Cannot allocate memory"), ErrorKind.OOM),
        (RuntimeError("NCCL error: unhandled cuda error, CUDA error: out of memory"), ErrorKind.OOM),
        (UnsupportedByBackend("no fp8"), ErrorKind.UNSUPPORTED),
        (UsageError("bad knob"), ErrorKind.UNSUPPORTED),
        (MissingDependency("no deep_ep"), ErrorKind.UNAVAILABLE),
        (ModuleNotFoundError("No module named 'deep_ep'"), ErrorKind.UNAVAILABLE),
        (
            RuntimeError("[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"),
            ErrorKind.LOST_PEER,
        ),
        (RuntimeError("Read error: Connection reset by peer"), ErrorKind.LOST_PEER),
        (OSError(28, "No space left on device"), ErrorKind.STORAGE),
        (ValueError("memory layout"), ErrorKind.ERROR),
    ],
)
def test_error_kinds(error: BaseException, kind: ErrorKind) -> None:
    assert error_kind(error) is kind


def position(rank: int, arm: int | None = 2, time: float = 1.0) -> Position:
    return Position(rank=rank, host=f"n{rank}", pid=1, phase="measure", arm=arm, iteration=7, time=time)


def test_signal_outranks_the_peers_that_lost_their_connection() -> None:
    failure = classify(
        Cause.EXIT,
        exits=[RankExit(rank=0, host="n0", exitcode=1), RankExit(rank=3, host="n3", exitcode=-signal.SIGKILL)],
        errors=[RankError(rank=0, host="n0", kind="lost_peer", message="Connection closed by peer", arm=2)],
        positions=[position(0), position(3)],
    )
    assert failure.status is RunStatus.CRASHED
    assert failure.reason == "rank 3 on n3 was killed by SIGKILL in phase measure, iteration 7"
    assert (failure.arm, failure.rank, failure.consequence) == (2, 3, False)


def test_kernel_oom_kill_turns_sigkill_into_oom() -> None:
    killed = [RankExit(rank=1, host="n1", exitcode=-signal.SIGKILL)]
    failure = classify(Cause.EXIT, exits=killed, positions=[position(1)], oom_kills=1)
    assert failure.status is RunStatus.OOM
    assert "lack of memory" in failure.reason
    other_signal = [RankExit(rank=1, host="n1", exitcode=-signal.SIGSEGV)]
    failure = classify(Cause.EXIT, exits=other_signal, positions=[position(1)], oom_kills=1)
    assert failure.status is RunStatus.CRASHED
    assert "SIGSEGV" in failure.reason


def test_termination_by_the_agent_is_no_cause() -> None:
    failure = classify(
        Cause.EXIT,
        exits=[RankExit(rank=0, host="n0", exitcode=-signal.SIGTERM)],
        errors=[RankError(rank=1, host="n1", kind="error", message="ValueError: x", arm=2, phase="phase oracle")],
        positions=[position(0)],
    )
    assert failure.reason == "rank 1 on n1 failed in phase oracle: ValueError: x"


def test_lost_peers_alone_are_a_consequence() -> None:
    errors = [RankError(rank=0, host="n0", kind="lost_peer", message="Connection closed by peer", arm=1)]
    failure = classify(Cause.EXIT, errors=errors, positions=[position(0, arm=1)])
    assert failure.consequence
    assert failure.arm == 1


def test_hang_blames_the_arm_reached_last_and_names_who_does_not_wait() -> None:
    failure = classify(
        Cause.HANG, positions=[position(0, arm=1, time=5.0), position(1, arm=0, time=2.0)], suspects=[1], limit_s=30.0
    )
    assert failure.status is RunStatus.TIMEOUT
    assert failure.arm == 1
    assert "30 s" in failure.reason
    assert "rank 1 on n1" in failure.reason


def test_interruption_wins_over_everything_it_caused() -> None:
    failure = classify(Cause.INTERRUPTED, exits=[RankExit(rank=0, host="n0", exitcode=-signal.SIGKILL)])
    assert failure.status is RunStatus.INTERRUPTED


def test_failure_outside_an_arm_blames_none() -> None:
    killed = [RankExit(rank=0, host="n0", exitcode=-signal.SIGKILL)]
    assert classify(Cause.EXIT, exits=killed, positions=[position(0, arm=None)]).arm is None


@pytest.mark.parametrize("said", [True, False])
def test_full_disk_is_no_arms_fault_even_when_the_rank_cannot_say_so(said: bool) -> None:
    error = RankError(rank=0, host="n0", kind="storage", message="[Errno 28] No space left on device", arm=1)
    exits = [RankExit(rank=0, host="n0", exitcode=EXIT_STORAGE)]
    failure = classify(Cause.EXIT, exits=exits, errors=[error] if said else [], positions=[position(0, arm=1)])
    assert failure.arm is None
    assert "cannot write its files" in failure.reason
    assert "TMPDIR" in failure.fix


def test_the_node_that_knows_explains_the_others() -> None:
    consequence = classify(Cause.STOPPED, positions=[position(0)], note="node 0 stopped this launch")
    real = classify(Cause.EXIT, exits=[RankExit(rank=3, host="n3", exitcode=-signal.SIGKILL)], positions=[position(3)])
    assert root_failure([consequence, None, real]) == real
    assert root_failure([consequence, None]) == consequence
    assert root_failure([None, None]) is None
