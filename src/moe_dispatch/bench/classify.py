"""From what a failed launch left behind (exit codes, error files, positions, counters) to a status, a reason and a fix.

Imports no torch: exceptions are recognised by class name and message. Message texts come from pytorch
(`c10/core/impl/alloc_cpu.cpp`: "can't allocate memory"; `torch.OutOfMemoryError`; gloo's "Connection closed by peer").
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from enum import Enum

from moe_dispatch.bench.progress import Position, RankError
from moe_dispatch.core.errors import MissingDependency, MoeDispatchError, UnsupportedByBackend
from moe_dispatch.evidence.record import Model, RunStatus

_OOM_TEXTS = ("can't allocate memory", "cannot allocate memory", "out of memory", "std::bad_alloc", "unable to mmap")
_LOST_PEER_TEXTS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket is not connected",
    "remote process exited",
    "connectfullmesh failed",
)
_OOM_FIX = "lower the tokens per rank, or run on ranks with more free memory"
_STORAGE_FIX = "free space there, or set TMPDIR to a folder on another file system; finished records are kept"
_STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
EXIT_STORAGE = 74
"""Exit code of a rank that could not write its files (EX_IOERR of sysexits.h): it could not write the reason either."""

_CRASH_FIX = "read the log of this launch; the other dispatchers were measured without this one"
_BLAMELESS_FIX = "read the log of this launch"


class ErrorKind(str, Enum):
    """What ended a rank. `lost_peer` is only ever a consequence of another rank's end; `storage` is no arm's fault."""

    OOM = "oom"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    LOST_PEER = "lost_peer"
    STORAGE = "storage"
    ERROR = "error"


class Cause(str, Enum):
    """Why the launcher stopped watching; `done` is the only good one, `exit` needs a look at the exit code."""

    DONE = "done"
    EXIT = "exit"
    HANG = "hang"
    NEVER_STARTED = "never_started"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"


class RankExit(Model):
    """A rank that ended badly, as its agent saw it; a negative exit code is a signal."""

    rank: int
    host: str
    exitcode: int


class Failure(Model):
    """Why a launch did not finish.

    Fields:
        arm: index of the arm to blame, or None when no arm was running.
        consequence: only peers or connections were seen to vanish; another node may know the real reason.
    """

    status: RunStatus
    reason: str
    fix: str = ""
    arm: int | None = None
    rank: int | None = None
    consequence: bool = False


def error_kind(error: BaseException) -> ErrorKind:
    """Classify an exception by its type's name and its message."""
    text = str(error).lower()
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return ErrorKind.OOM
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRNOS:
        return ErrorKind.STORAGE
    if isinstance(error, UnsupportedByBackend):
        return ErrorKind.UNSUPPORTED
    if isinstance(error, (MissingDependency, ImportError)):
        return ErrorKind.UNAVAILABLE
    if isinstance(error, MoeDispatchError):
        return ErrorKind.UNSUPPORTED
    if any(part in text for part in _OOM_TEXTS):
        return ErrorKind.OOM
    if any(part in text for part in _LOST_PEER_TEXTS):
        return ErrorKind.LOST_PEER
    return ErrorKind.ERROR


def status_of(kind: ErrorKind) -> RunStatus:
    """Record status of an error kind."""
    by_kind = {
        ErrorKind.OOM: RunStatus.OOM,
        ErrorKind.UNSUPPORTED: RunStatus.UNSUPPORTED,
        ErrorKind.UNAVAILABLE: RunStatus.UNAVAILABLE,
    }
    return by_kind.get(kind, RunStatus.CRASHED)


def classify(
    cause: Cause,
    *,
    exits: Sequence[RankExit] = (),
    errors: Sequence[RankError] = (),
    positions: Sequence[Position] = (),
    suspects: Sequence[int] = (),
    oom_kills: int = 0,
    limit_s: float = 0.0,
    note: str = "",
) -> Failure:
    """The one failure that explains the end of a launch.

    Args:
        cause: why the launcher stopped.
        exits, errors, positions: what agents and ranks left.
        suspects: ranks that were not waiting for others when a hang was dumped.
        oom_kills: processes the kernel killed for memory during the launch.
        limit_s: the limit that was exceeded, for hangs and missing starts.
        note: text of an outside stop.
    """
    if cause is Cause.INTERRUPTED:
        return Failure(status=RunStatus.INTERRUPTED, reason="interrupted by the user", fix="resume with the same store")
    root = [error for error in errors if error.kind != ErrorKind.LOST_PEER.value]
    if root:
        return _from_error(root[0])
    killed = [entry for entry in exits if entry.exitcode < 0 and entry.exitcode != -signal.SIGTERM]
    if killed:
        return _from_signal(killed[0], positions, oom_kills)
    explained = {error.rank for error in errors}
    left = [entry for entry in exits if entry.exitcode > 0 and entry.rank not in explained]
    if left:
        return _from_exit(left[0], positions)
    if cause is Cause.HANG:
        return _from_hang(positions, suspects, limit_s)
    if cause is Cause.NEVER_STARTED:
        return Failure(
            status=RunStatus.CRASHED,
            reason=f"the ranks did not find each other within {limit_s:.0f} s",
            fix="check that every node runs the same command and reaches the rendezvous address, then read the log",
        )
    arm = _common_arm(positions)
    if cause is Cause.STOPPED:
        return Failure(status=RunStatus.CRASHED, reason=note or "stopped by another node", arm=arm, consequence=True)
    if errors:
        first = errors[0]
        reason = f"rank {first.rank} on {first.host} lost its peers: {first.message}"
        return Failure(
            status=RunStatus.CRASHED, reason=reason, fix=_CRASH_FIX, arm=arm, rank=first.rank, consequence=True
        )
    fix = _BLAMELESS_FIX if arm is None else _CRASH_FIX
    return Failure(status=RunStatus.CRASHED, reason="the launch ended without a result", fix=fix, arm=arm)


def _from_error(error: RankError) -> Failure:
    if error.kind == ErrorKind.STORAGE.value:
        reason = f"rank {error.rank} on {error.host} cannot write its files: {error.message}"
        return Failure(status=RunStatus.CRASHED, reason=reason, fix=_STORAGE_FIX, rank=error.rank)
    status = status_of(ErrorKind(error.kind))
    where = f"rank {error.rank} on {error.host}"
    wording = {
        RunStatus.OOM: (f"{where} ran out of memory in {error.phase}: {error.message}", _OOM_FIX),
        RunStatus.UNSUPPORTED: (f"{where} refused: {error.message}", ""),
        RunStatus.UNAVAILABLE: (f"{where} cannot load it: {error.message}", ""),
        RunStatus.CRASHED: (f"{where} failed in {error.phase}: {error.message}", _CRASH_FIX),
    }
    reason, fix = wording[status]
    if error.arm is None and fix == _CRASH_FIX:
        fix = _BLAMELESS_FIX
    return Failure(status=status, reason=reason, fix=error.fix or fix, arm=error.arm, rank=error.rank)


def _from_signal(entry: RankExit, positions: Sequence[Position], oom_kills: int) -> Failure:
    here = next((position for position in positions if position.rank == entry.rank), None)
    where = here.describe() if here else "an unknown phase"
    arm = here.arm if here else _common_arm(positions)
    name = _signal_name(-entry.exitcode)
    if oom_kills and entry.exitcode == -signal.SIGKILL:
        reason = f"rank {entry.rank} on {entry.host} was killed by the kernel for lack of memory in {where}"
        return Failure(status=RunStatus.OOM, reason=reason, fix=_OOM_FIX, arm=arm, rank=entry.rank)
    reason = f"rank {entry.rank} on {entry.host} was killed by {name} in {where}"
    return Failure(status=RunStatus.CRASHED, reason=reason, fix=_CRASH_FIX, arm=arm, rank=entry.rank)


def _from_exit(entry: RankExit, positions: Sequence[Position]) -> Failure:
    here = next((position for position in positions if position.rank == entry.rank), None)
    where = here.describe() if here else "its start"
    if entry.exitcode == EXIT_STORAGE:
        reason = f"rank {entry.rank} on {entry.host} cannot write its files in {where}"
        return Failure(status=RunStatus.CRASHED, reason=reason, fix=_STORAGE_FIX, rank=entry.rank)
    reason = f"rank {entry.rank} on {entry.host} exited with code {entry.exitcode} in {where} without saying why"
    return Failure(
        status=RunStatus.CRASHED, reason=reason, fix=_CRASH_FIX, arm=here.arm if here else None, rank=entry.rank
    )


def _from_hang(positions: Sequence[Position], suspects: Sequence[int], limit_s: float) -> Failure:
    latest = max(positions, key=lambda position: position.time, default=None)
    where = latest.describe() if latest else "an unknown phase"
    hosts = {position.rank: position.host for position in positions}
    named = ", ".join(f"rank {rank} on {hosts.get(rank, '?')}" for rank in suspects)
    reason = f"no rank made progress for {limit_s:.0f} s in {where}"
    if named:
        reason += f"; not waiting for the others: {named}"
    return Failure(
        status=RunStatus.TIMEOUT,
        reason=reason,
        fix="the stacks of all ranks are in the log; raise the arm time-out only if the arm is known to be that slow",
        arm=_common_arm(positions),
        rank=suspects[0] if suspects else None,
    )


def _common_arm(positions: Sequence[Position]) -> int | None:
    latest = max(positions, key=lambda position: position.time, default=None)
    return latest.arm if latest else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
