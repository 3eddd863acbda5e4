"""Processes of a launch: finding every one of them, killing them all, and proving that none is left.

torchrun starts each rank in a session of its own, so a process group does not hold them all; a variable in their
environment does. This needs Linux (`/proc`, prctl(2) `PR_SET_PDEATHSIG`); elsewhere only the agent's group is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

MARKER = "MOE_DISPATCH_LAUNCH_ID"
_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int = 0) -> None:
    """Ask the kernel to SIGKILL this process when its parent ends; exits now if `expected_parent` is gone already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if expected_parent and os.getppid() != expected_parent:
        os._exit(1)


def marked_pids(launch_id: str) -> list[int]:
    """Living processes of this user whose environment carries the launch id."""
    needle = f"{MARKER}={launch_id}".encode()
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if needle in _environment(entry)]


def _environment(process: Path) -> list[bytes]:
    """`NAME=value` of a process; empty when it is gone or someone else's."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def kill_launch(launch_id: str, agent_pid: int, wait_s: float = 10.0) -> list[int]:
    """SIGKILL the agent's group and every marked process; returns the pids that survived `wait_s`, normally none."""
    deadline = time.monotonic() + wait_s
    with contextlib.suppress(OSError):
        os.killpg(agent_pid, signal.SIGKILL)
    while True:
        alive = [pid for pid in marked_pids(launch_id) if pid != os.getpid()]
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def kernel_oom_kills() -> int:
    """Processes the kernel has killed for memory since boot (`oom_kill` of /proc/vmstat), 0 where unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
