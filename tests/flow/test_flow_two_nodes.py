"""`select` over a given rendezvous: two network namespaces with a shaped link stand for two nodes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
WORKLOAD = """\
model: {name: tiny, hidden: 64, num_layers: 2, num_moe_layers: 2, num_experts: 8, topk: 2, moe_ffn_hidden: 32}
layout: {ep: 4}
seq_length: 64
"""
LAUNCHES = 2


def _netns() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_netns", ROOT / "benchmarks" / "netns.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def prefixes() -> Iterator[tuple[tuple[list[str], str], ...]]:
    """(command prefix, address) of two namespaces joined by 1 Gbit/s."""
    netns = _netns()
    reason = netns.why_unavailable()
    if reason:
        pytest.skip(reason)
    with netns.two_nodes("1gbit") as nodes:
        yield tuple((node.prefix, node.address) for node in nodes)


@pytest.mark.gloo
@pytest.mark.netns
def test_two_nodes_reach_one_verdict(prefixes: tuple[tuple[list[str], str], ...], tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(WORKLOAD)
    endpoint = f"{prefixes[0][1]}:29480"
    processes = []
    for rank, (prefix, _) in enumerate(prefixes):
        command = [*prefix, sys.executable, "-m", "moe_dispatch.cli.main", "select", "tiny.yaml", "--json"]
        command += ["--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", endpoint]
        command += ["--launches", str(LAUNCHES), "--budget", "300", "--out", f"node{rank}"]
        processes.append(
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        (out, errors), (followed, follower_errors) = (process.communicate(timeout=280) for process in processes)
    finally:
        for process in processes:
            process.kill()
    assert "Traceback" not in errors + follower_errors
    result = json.loads(out)
    verdict = result["verdict"]
    assert verdict["measured_on"]["nodes"] == 2
    assert verdict["measured_on"]["ranks"] == 4
    arms = {arm["choice"]["dispatcher"]: arm["launches"] for arm in verdict["evidence"]}
    assert arms == {"alltoall": LAUNCHES, "allgather": LAUNCHES, "hierarchical": LAUNCHES}
    assert json.loads(followed) == {"followed": f"{verdict['kind']}: {verdict['statement']}"}
    assert processes[1].returncode == 0
    assert not (tmp_path / "node1").exists()  # followers need no disk of their own
    crossing = {row["name"]: row for row in result["traffic"] if row["routing"] == "force_balanced"}
    # Each of two domains holds half of the experts, so half of the copies cross in expectation; a domain is reached
    # at most once by a token, so fewer rows cross than copies do.
    assert crossing["rows_copies_off_domain"]["expected"] == 4 * 64 * 2 / 2
    assert 0 < crossing["rows_domain_off_domain"]["counted"] < crossing["rows_copies_off_domain"]["counted"]
