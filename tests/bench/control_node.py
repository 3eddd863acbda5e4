"""One node of a small session: `control_node.py NODE_RANK ENDPOINT FOLDER NPROC ARM...`; prints what it learned."""

from __future__ import annotations

import sys
from pathlib import Path

from bench_helpers import ALLTOALL, HIERARCHICAL, faulty, tiny_plan

from moe_dispatch.bench.control import Leader, follow
from moe_dispatch.bench.plan import Rendezvous
from moe_dispatch.bench.run import BenchRequest, run_bench
from moe_dispatch.core.errors import MoeDispatchError
from moe_dispatch.evidence.store import Store

KNOWN = {"alltoall": ALLTOALL, "hierarchical": HIERARCHICAL}


def main(node_rank: int, endpoint: str, folder: Path, nproc: int, names: list[str]) -> None:
    rendezvous = Rendezvous(nnodes=2, node_rank=node_rank, endpoint=endpoint, arrive_timeout_s=20.0)
    if node_rank:
        print("final:", follow(rendezvous, nproc, folder))
        return
    arms = [KNOWN.get(name) or faulty(name) for name in names]
    plan = tiny_plan(*arms, world=2 * nproc)
    request = BenchRequest(plan=plan, launches=2, nproc=nproc, work_dir=str(folder / "work"))
    with Leader(rendezvous, nproc) as leader:
        run_bench(request, Store(folder / "store"), runner=leader.run)
        leader.finish("all done")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    except MoeDispatchError as error:
        print("error:", error.message)
        sys.exit(1)
