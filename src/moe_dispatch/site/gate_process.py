"""The child process of a gate: started with limits, waited for, and gone with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTPUT_TAIL = 4000
"""Characters of a child's output that are kept."""

_POLL_S = 0.05
_KILLED_S = 5.0
_CHILD = Path(__file__).with_name("gate_child.py")


@dataclass(frozen=True)
class Ended:
    """How a child ended: `report` is None if it never wrote one; `returncode` is None if it was killed."""

    report: dict[str, Any] | None
    returncode: int | None
    output: str
    seconds: float


def run_child(python: str, request: dict[str, Any], timeout_s: float, cancelled: threading.Event) -> Ended:
    """Run `gate_child.py` with a request, and leave no process of its session behind.

    Raises:
        OSError: the interpreter cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="moe-dispatch-gate-") as folder:
        report_path, log_path = Path(folder, "report.json"), Path(folder, "output")
        begin = time.monotonic()
        with open(log_path, "wb") as log:
            child = subprocess.Popen(
                # unbuffered, so that what was printed before a crash or a hang is kept
                [python, "-u", "-X", "faulthandler", str(_CHILD), json.dumps(request), str(report_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                returncode = _wait(child, begin + timeout_s, cancelled)
            finally:
                end_session(child)
        seconds = time.monotonic() - begin
        try:
            report = json.loads(report_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            report = None
        return Ended(report, returncode, tail(log_path), seconds)


def end_session(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that leads its own session, with everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a driver call that hangs outlives even a kill
        child.wait(_KILLED_S)


def tail(path: Path) -> str:
    """The end of a log; longer than what is kept, so that masking cuts no secret in two."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 3 * OUTPUT_TAIL))
        return file.read().decode("utf-8", "replace")


def _wait(child: subprocess.Popen[bytes], deadline: float, cancelled: threading.Event) -> int | None:
    while not cancelled.is_set():
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return child.wait(timeout=min(left, _POLL_S))
        except subprocess.TimeoutExpired:
            continue
    return None
