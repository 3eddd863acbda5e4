"""What the launcher looks at while ranks run: positions, error files, exit files, stacks, the log."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from moe_dispatch.bench.classify import Cause, RankExit
from moe_dispatch.bench.progress import Position, read_errors, read_positions

ERROR_GRACE_S = 5.0
_CHECK_EVERY_S = 0.1
_DUMP_WAIT_S = 1.0
_INNERMOST = 4
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
_WAIT = re.compile(r"\b(?:wait|barrier|synchronize)\w*\(")


class Observer:
    """Decides when a running launch has to be stopped.

    Args:
        folder: positions and error files of this node's ranks.
        start_timeout_s: limit until the first rank leaves phase `start`.
        arm_timeout_s: limit without any change afterwards.
        nproc: ranks of this node.
    """

    def __init__(self, folder: Path, start_timeout_s: float, arm_timeout_s: float, nproc: int) -> None:
        self._folder = folder
        self._nproc = nproc
        self._start_timeout_s = start_timeout_s
        self._arm_timeout_s = arm_timeout_s
        self._begun = time.monotonic()
        self._changed = self._begun
        self._checked = 0.0
        self._last: list[tuple[int, float]] = []
        self._error_since: float | None = None

    def check(self) -> Cause | None:
        """A reason to stop, or None. Cheap enough to be called in a loop."""
        now = time.monotonic()
        if now - self._checked < _CHECK_EVERY_S:
            return None
        self._checked = now
        positions = read_positions(self._folder)
        stamp = [(position.rank, position.time) for position in positions]
        if stamp != self._last:
            self._last, self._changed = stamp, now
        if read_errors(self._folder):
            self._error_since = self._error_since or now
            if now - self._error_since > ERROR_GRACE_S:
                return Cause.EXIT
        if len(positions) == self._nproc and all(position.phase == "done" for position in positions):
            return Cause.DONE
        if not positions or all(position.phase == "start" for position in positions):
            return Cause.NEVER_STARTED if now - self._begun > self._start_timeout_s else None
        if now - self._changed > self._arm_timeout_s:
            return Cause.HANG
        return None


def dump_stacks(folder: Path, positions: Sequence[Position], log: Path) -> list[int]:
    """Have each rank dump its stacks (SIGUSR1), append them to the log, and name the ranks not inside a collective."""
    for position in positions:
        with contextlib.suppress(OSError):
            os.kill(position.pid, signal.SIGUSR1)
    time.sleep(_DUMP_WAIT_S)
    suspects = []
    with log.open("a", encoding="utf-8") as out:
        for position in positions:
            stack = read_text(folder / f"stack{position.rank}.txt")
            out.write(f"\nstacks of rank {position.rank} on {position.host} ({position.describe()})\n{stack}\n")
            if stack and not _waits_for_others(stack):
                suspects.append(position.rank)
    return suspects


def _waits_for_others(stack: str) -> bool:
    """Whether the main thread (dumped last by faulthandler) waits for a collective or a message.

    The wait itself is native code, so the innermost Python frame is the line that calls it.
    """
    threads = re.split(r"^(?:Current thread|Thread) ", stack, flags=re.MULTILINE)
    frames = _FRAME.findall(threads[-1])
    if any("/torch/distributed/" in file for file, _ in frames[:_INNERMOST]):
        return True
    return bool(frames) and _WAIT.search(linecache.getline(frames[0][0], int(frames[0][1]))) is not None


def read_exits(path: Path) -> list[RankExit]:
    """Exit codes the agent wrote; none when it did not get that far."""
    try:
        return [RankExit.model_validate(row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []


def read_text(path: Path) -> str:
    """Content of a text file, empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def tail(path: Path, limit: int) -> str:
    """The last `limit` bytes of a file as text."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
