"""Dispatchers across a slow link: two network namespaces with two ranks each, and four ranks on loopback.

    sudo .venv/bin/python benchmarks/two_nodes.py [--links 1gbit,10gbit,unlimited,loopback] [--rounds N]

T=2048 H=1024 E=64 K=8. Both `alltoall` forms and `hierarchical` run interleaved in one process group for each link,
after the oracle. `floor` is the time the link needs for the remote-domain bytes of dispatch and combine at its rate,
counted from the routing (doubled for forward plus backward). Medians of the slowest rank. Last line: RESULT {json}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netns

SHAPE = {"tokens": 2048, "hidden": 1024, "experts": 64, "topk": 8, "seed": 17}
ALLTOALL = [
    {"label": "alltoall(collective)", "dispatcher": "alltoall", "knobs": {"form": "collective"}},
    {"label": "alltoall(p2p)", "dispatcher": "alltoall", "knobs": {"form": "p2p"}},
]
GBIT = {"1gbit": 1.0, "10gbit": 10.0}
# More chunks overlap more on a slow link and cost more calls on a fast one: the knob `select` tunes, chosen here by
# link.
CHUNKS = {"1gbit": 8, "10gbit": 1, "unlimited": 1, "loopback": 1}
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
WORKER = Path(__file__).with_name("exchange_ranks.py")


@contextlib.contextmanager
def nodes_for(link: str) -> Iterator[list[tuple[list[str], str, str]]]:
    """(command prefix, interface, master address) of each of the four ranks."""
    if link == "loopback":
        yield [([], "lo", "127.0.0.1")] * 4
        return
    with netns.two_nodes(None if link == "unlimited" else link) as nodes:
        yield [(node.prefix, node.interface, nodes[0].address) for node in nodes for _ in range(2)]


def measure(link: str, rounds: int, dtypes: list[str], backward: list[str], timeout_s: float) -> dict[str, Any]:
    """Run the four ranks; returns rank 0's report."""
    hierarchical = {"label": "hierarchical", "dispatcher": "hierarchical", "knobs": {"chunks": CHUNKS[link]}}
    task = SHAPE | {
        "ranks_per_node": 4 if link == "loopback" else 2,
        "arms": [*ALLTOALL, hierarchical],
        "dtypes": dtypes,
        "backward_dtypes": backward,
        "rounds": rounds,
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with nodes_for(link) as places:
        ranks = []
        for rank, (prefix, interface, master) in enumerate(places):
            env = os.environ | {
                "MASTER_ADDR": master,
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": "4",
                "GLOO_SOCKET_IFNAME": interface,
                "OMP_NUM_THREADS": "1",
            }
            command = [*prefix, sys.executable, str(WORKER), json.dumps(task)]
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        try:
            output = [process.communicate(timeout=timeout_s)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    if any(process.returncode for process in ranks):
        raise SystemExit(f"{link}: a rank failed with exit codes {[process.returncode for process in ranks]}")
    return dict(json.loads(output[0].splitlines()[-1]))


def summarise(link: str, report: dict[str, Any], figures: dict[str, float]) -> None:
    """Print the table of one link and add its figures."""
    medians = {key: statistics.median(times) for key, times in report["times_us"].items()}
    for dtype in ITEM_BYTES:
        for phase in ("fwd", "fwdbwd"):
            rows = {key.split("/")[0]: value for key, value in medians.items() if key.endswith(f"/{dtype}/{phase}")}
            if not rows:
                continue
            name = f"{link}_{SHORT[dtype]}_{phase}"
            baseline = min(value for label, value in rows.items() if label.startswith("alltoall"))
            figures[f"speedup_hierarchical_{name}"] = round(baseline / rows["hierarchical"], 3)
            line = "  ".join(f"{label} {value / 1e3:.1f} ms" for label, value in rows.items())
            line += f"  speed-up {baseline / rows['hierarchical']:.2f}"
            if link in GBIT:
                crossing = report["rows_domain_off_domain"] / 2 * SHAPE["hidden"] * ITEM_BYTES[dtype]
                floor_us = 2 * crossing * 8 / (GBIT[link] * 1e3) * (2 if phase == "fwdbwd" else 1)
                figures[f"floor_ratio_{name}"] = round(rows["hierarchical"] / floor_us, 3)
                line += f"  floor {floor_us / 1e3:.1f} ms  ratio {rows['hierarchical'] / floor_us:.2f}"
            for label, value in rows.items():
                figures[f"ms_{label.replace('(', '_').replace(')', '')}_{name}"] = round(value / 1e3, 2)
                spread = report["times_us"][f"{label}/{dtype}/{phase}"]
                figures[f"ms_max_{label.replace('(', '_').replace(')', '')}_{name}"] = round(max(spread) / 1e3, 2)
            print(f"{link} {SHORT[dtype]} {phase}: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="1gbit,10gbit,unlimited,loopback")
    parser.add_argument("--rounds", type=int, default=4, help="each round visits every arm twice (A B C C B A)")
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds for each link")
    options = parser.parse_args()
    links = options.links.split(",")
    unknown = [link for link in links if link not in CHUNKS]
    if unknown:
        parser.error(f"unknown link {unknown[0]!r}; allowed: {', '.join(CHUNKS)}")
    reason = netns.why_unavailable()
    if reason and set(links) != {"loopback"}:
        parser.error(f"{reason}; `--links loopback` needs neither")
    figures: dict[str, float] = {}
    for link in links:
        full = link == "1gbit"
        report = measure(
            link,
            options.rounds,
            ["float32", "bfloat16"] if full else ["float32"],
            ["float32"] if full else [],
            options.timeout,
        )
        summarise(link, report, figures)
    result = {
        "figures": figures,
        "hardware": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "torch": _torch_version()},
        "labels": ["cpu", "gloo", "oracle_passed", f"rounds={options.rounds}"],
    }
    print("RESULT " + json.dumps(result))


def _torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


if __name__ == "__main__":
    main()
