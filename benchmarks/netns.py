"""Two network namespaces of this machine joined by a veth pair whose rate `tc tbf` limits: two nodes without two
machines.

Needs root and iproute2. Everything is named after this process and removed on exit. Traffic stays on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

BURST = "256kb"
QUEUE_LIMIT = "4mb"


@dataclass(frozen=True)
class Node:
    """One namespace: run commands in it with `prefix + command`."""

    name: str
    address: str
    interface: str

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]


def why_unavailable() -> str:
    """Empty when namespaces can be made here, else the reason."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: apt-get install iproute2"
    name = f"md{os.getpid()}probe"
    try:
        _run("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"ip netns add failed: {error.stderr.strip()}"
    _run("ip", "netns", "delete", name)
    return ""


@contextlib.contextmanager
def two_nodes(rate: str | None) -> Iterator[tuple[Node, Node]]:
    """Two nodes with a link of `rate` (tc syntax, for example `1gbit`; None: unlimited) in each direction."""
    pid = os.getpid()
    nodes = (Node(f"md{pid}a", "10.77.0.1", f"md{pid}va"), Node(f"md{pid}b", "10.77.0.2", f"md{pid}vb"))
    try:
        for node in nodes:
            _run("ip", "netns", "add", node.name)
        _run("ip", "link", "add", nodes[0].interface, "type", "veth", "peer", "name", nodes[1].interface)
        for node in nodes:
            _run("ip", "link", "set", node.interface, "netns", node.name)
            _run(*node.prefix, "ip", "addr", "add", f"{node.address}/24", "dev", node.interface)
            _run(*node.prefix, "ip", "link", "set", node.interface, "up")
            _run(*node.prefix, "ip", "link", "set", "lo", "up")
            if rate is not None:
                shaping = ("root", "tbf", "rate", rate, "burst", BURST, "limit", QUEUE_LIMIT)
                _run(*node.prefix, "tc", "qdisc", "add", "dev", node.interface, *shaping)
        yield nodes
    finally:
        for node in nodes:
            subprocess.run(["ip", "netns", "delete", node.name], capture_output=True, check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
