"""Two nodes in lock step: on one host, and in two network namespaces with a link between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moe_dispatch.bench import network
from moe_dispatch.bench.control import Leader, follow
from moe_dispatch.bench.plan import Rendezvous
from moe_dispatch.core.errors import LaunchError
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.evidence.store import Store

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(200)]
HERE = Path(__file__).parent


def start_node(
    rank: int, endpoint: str, folder: Path, nproc: int, *arms: str, prefix: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, str(HERE / "control_node.py"), str(rank), endpoint, str(folder), str(nproc), *arms],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        text=True,
    )


def run_two_nodes(
    folder: Path, endpoint: str, nproc: int, *arms: str, prefixes: tuple[tuple[str, ...], ...] = ((), ())
) -> list[str]:
    """Run both nodes to the end; returns their output."""
    nodes = [
        start_node(rank, endpoint, folder / f"node{rank}", nproc, *arms, prefix=prefixes[rank]) for rank in range(2)
    ]
    try:
        return [node.communicate(timeout=150)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()


def local_endpoint() -> str:
    return f"127.0.0.1:{network.free_port('127.0.0.1')}"


def test_two_nodes_measure_together_and_the_follower_reads_the_final_text(tmp_path: Path) -> None:
    outputs = run_two_nodes(tmp_path, local_endpoint(), 1, "alltoall", "hierarchical")
    assert outputs == ["", "final: all done\n"]
    records = Store(tmp_path / "node0" / "store").read_all()
    assert [(r.launch, r.choice.dispatcher, r.status) for r in records] == [
        (launch, arm, RunStatus.OK) for launch in range(2) for arm in ("alltoall", "hierarchical")
    ]
    assert {(r.contract.site["nodes"], r.contract.site["ranks"]) for r in records} == {(2, 2)}
    assert {r.contract.site["ranks_per_domain"] for r in records} == {1}
    for record in records:
        assert record.traffic is not None
        assert record.traffic.rows_rank_off_domain == record.traffic.rows_rank_off_rank > 0
    assert not (tmp_path / "node1" / "store").exists()


def test_rank_killed_on_the_other_node_is_explained_by_that_node(tmp_path: Path) -> None:
    outputs = run_two_nodes(tmp_path, local_endpoint(), 1, "alltoall", "KillDispatcher")
    assert outputs == ["", "final: all done\n"]
    records = Store(tmp_path / "node0" / "store").read_all()
    (failed,) = [record for record in records if record.choice.dispatcher == "KillDispatcher"]
    assert failed.status is RunStatus.CRASHED
    assert failed.reason.startswith("rank 1 on ")
    assert "killed by SIGKILL" in failed.reason
    healthy = [record for record in records if record.choice.dispatcher == "alltoall"]
    assert [record.status for record in healthy] == [RunStatus.OK, RunStatus.OK]


def test_node_that_never_arrives_is_named() -> None:
    endpoint = local_endpoint()
    waits: list[str] = []
    with pytest.raises(LaunchError, match=rf"node 1, 2 of 3 did not arrive at {endpoint} within 1 s"):
        Leader(Rendezvous(nnodes=3, node_rank=0, endpoint=endpoint, arrive_timeout_s=1.0), 1, waits.append)
    assert waits == [f"waiting for node 1, 2 at {endpoint}"]


def test_missing_node_0_is_a_clear_error(tmp_path: Path) -> None:
    endpoint = local_endpoint()
    with pytest.raises(LaunchError, match=f"no node 0 at {endpoint} within 1 s"):
        follow(Rendezvous(nnodes=2, node_rank=1, endpoint=endpoint, arrive_timeout_s=1.0), 1, tmp_path)


def test_nodes_with_different_ranks_are_refused_on_both_sides(tmp_path: Path) -> None:
    endpoint = local_endpoint()
    nodes = [
        start_node(0, endpoint, tmp_path / "a", 1, "alltoall"),
        start_node(1, endpoint, tmp_path / "b", 2, "alltoall"),
    ]
    outputs = [node.communicate(timeout=60)[0] for node in nodes]
    assert outputs[0] == "error: nodes differ in nproc: {0: 1, 1: 2}\n"
    assert outputs[1].startswith("error: node 0 stopped: nodes differ in nproc")
    assert [node.returncode for node in nodes] == [1, 1]


def test_followers_notice_that_node_0_is_gone(tmp_path: Path) -> None:
    endpoint = local_endpoint()
    leader = start_node(0, endpoint, tmp_path / "a", 1, "alltoall", "HangDispatcher")
    follower = start_node(1, endpoint, tmp_path / "b", 1)
    ready = tmp_path / "b" / "launch-000" / "progress" / "rank1.json"
    try:
        while not ready.is_file():
            assert follower.poll() is None
        leader.kill()
        assert follower.communicate(timeout=60)[0].startswith(f"error: node 0 at {endpoint} is gone")
    finally:
        leader.kill()
        follower.kill()
        leader.communicate()


@pytest.fixture
def two_namespaces() -> Iterator[tuple[tuple[str, ...], ...]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    names = [f"moed{os.getpid()}{side}" for side in "ab"]
    links = [f"v{os.getpid()}{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for index, (name, link) in enumerate(zip(names, links, strict=True)):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{index + 1}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield tuple(("ip", "netns", "exec", name) for name in names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.netns
def test_gloo_uses_the_link_that_reaches_the_rendezvous(
    tmp_path: Path, two_namespaces: tuple[tuple[str, ...], ...]
) -> None:
    outputs = run_two_nodes(tmp_path, "10.77.0.1:29460", 2, "alltoall", "hierarchical", prefixes=two_namespaces)
    assert outputs == ["", "final: all done\n"]
    records = Store(tmp_path / "node0" / "store").read_all()
    assert [record.status for record in records] == [RunStatus.OK] * 4
    for record in records:
        assert record.provenance.environment["GLOO_SOCKET_IFNAME"] == f"v{os.getpid()}a"
        assert record.contract.site["ranks_per_domain"] == 2
        assert record.performance is not None
        hosts = record.performance.host_of_rank
        assert [host.endswith("#0") for host in hosts] == [True, True, False, False]
