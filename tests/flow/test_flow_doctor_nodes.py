"""`doctor` across two nodes: network namespaces with host names of their own, one of them set up differently."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from doctor_ranks import QUICK, finished, start

NETNS = Path(__file__).parents[2] / "benchmarks" / "netns.py"
PORT = 29490
HOSTS = ("node1", "node2")
LIMIT = ("--timeout", "10")


def _netns() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_netns", NETNS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def nodes() -> Iterator[tuple[tuple[list[str], str], ...]]:
    """(command prefix, address) of two joined namespaces in which the host has a name of its own."""
    netns = _netns()
    reason = netns.why_unavailable() or ("" if shutil.which("unshare") else "unshare not found")
    if reason:
        pytest.skip(reason)
    with netns.two_nodes(None) as found:
        yield tuple(
            ([*node.prefix, "unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"], node.address)
            for node, name in zip(found, HOSTS, strict=True)
        )


def _launch(
    nodes: tuple[tuple[list[str], str], ...], ranks: range, settings: tuple[dict[str, str], dict[str, str]]
) -> list[subprocess.Popen[str]]:
    """Two ranks on each node, with the settings of their node."""
    return [
        start(
            rank,
            4,
            PORT,
            *QUICK,
            *LIMIT,
            "--json",
            prefix=nodes[rank // 2][0],
            master=nodes[0][1],
            local_rank=rank % 2,
            node=rank // 2,
            settings=settings[rank // 2],
        )
        for rank in ranks
    ]


@pytest.mark.netns
def test_the_finding_names_hosts_and_values(nodes: tuple[tuple[list[str], str], ...], tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"another build")
    changed = {"NCCL_P2P_DISABLE": "1", "LD_LIBRARY_PATH": str(tmp_path)}
    with finished(_launch(nodes, range(4), ({}, changed))) as ended:
        assert [rank.code for rank in ended] == [1] * 4
        decision = ended[0].document["decision"]
        assert decision["hosts"] == list(HOSTS)
        message = ended[0].finding("ranks-differ")["message"]
        assert "setting NCCL_P2P_DISABLE: not set on node1 (rank 0-1); 1 on node2 (rank 2-3)" in message
        assert f"{library} (13 bytes) on node2" in message
        assert "LD_LIBRARY_PATH" in ended[0].finding("ranks-differ-harmlessly")["message"]
        assert [one["host"] for one in ended[0].document["hosts"]] == list(HOSTS)
        assert all(rank.out == "" for rank in ended[1:])


@pytest.mark.netns
def test_alike_nodes_agree(nodes: tuple[tuple[list[str], str], ...]) -> None:
    with finished(_launch(nodes, range(4), ({}, {}))) as ended:
        assert [rank.code for rank in ended] == [0] * 4
        assert ended[0].document["decision"]["differences"] == []
        assert ended[0].document["site"]["nodes"] == 2


@pytest.mark.netns
def test_a_node_that_never_starts_is_named(nodes: tuple[tuple[list[str], str], ...]) -> None:
    nodelist = {"SLURM_STEP_NODELIST": "node[1-2]"}
    with finished(_launch(nodes, range(2), (nodelist, {}))) as ended:
        assert [rank.code for rank in ended] == [1, 1]
        message = ended[0].finding("ranks-missing")["message"]
        assert "2 of 4 ranks did not report: 2-3" in message
        assert "no rank of node2 was heard (heard: node1)" in message
