"""Ranks of `moe-dispatch doctor` as real processes, with the variables that torchrun would set."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main", "doctor"]
QUICK = ("--backend", "hybridep")
"""A package that is not installed here: its gate takes a fraction of a second and finds nothing wrong."""


@dataclass(frozen=True)
class Finished:
    """How one rank ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def finding(self, identifier: str) -> Any:
        found = {finding["id"]: finding for finding in self.document["decision"]["findings"]}
        assert identifier in found, f"{identifier} not in {sorted(found)}"
        return found[identifier]


def free_port() -> int:
    """A port whose neighbours are free too, below the ephemeral ones: ranks try several in turn."""
    for first in range(15000 + os.getpid() % 4000 * 4, 32000, 8):
        try:
            for port in range(first, first + 5):
                with socket.create_server(("", port)):
                    pass
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def start(
    rank: int,
    world: int,
    port: int,
    *arguments: str,
    settings: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    master: str = "127.0.0.1",
    local_rank: int | None = None,
    node: int | None = None,
) -> subprocess.Popen[str]:
    """Start one rank; it is not waited for."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))
    }
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": master, "MASTER_PORT": str(port)}
    environment["LOCAL_RANK"] = str(rank if local_rank is None else local_rank)
    environment["GROUP_RANK"] = str(node or 0)
    return subprocess.Popen(
        [*prefix, *COMMAND, *arguments],
        env={**environment, **(settings or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def finished(processes: Iterable[subprocess.Popen[str]], limit_s: float = 60.0) -> Any:
    """Wait for all ranks; whatever happens, none is left."""
    ranks = list(processes)
    begin = time.monotonic()
    try:
        ended = []
        for process in ranks:
            out, err = process.communicate(timeout=max(1.0, limit_s - (time.monotonic() - begin)))
            ended.append(Finished(process.returncode, out, err, time.monotonic() - begin))
        for rank in ended:
            assert "Traceback" not in rank.err
        yield ended
    finally:
        for process in ranks:
            process.kill()
            process.wait()
