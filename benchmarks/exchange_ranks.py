"""One rank of an exchange benchmark: times several dispatchers interleaved in one process group.

Started by `two_nodes.py`; reads its task as JSON from argv[1] and rank 0 prints one JSON line. Time of an iteration is
the maximum over ranks of dispatch plus combine (`fwd`), or of both with their backward passes through autograd
(`fwdbwd`). Experts are the identity; routing weights are dispatched, their product with the rows belongs to the experts
and is not timed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from moe_dispatch.core.registry import get_backend, load_target
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.dispatch.reference import check_dispatcher
from moe_dispatch.workload.routing import RoutingSpec, generate
from moe_dispatch.workload.traffic import count_rows


def one_iteration(
    dispatcher: Dispatcher, x: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor, grad: torch.Tensor, backward: bool
) -> float:
    dist.barrier()
    start = time.perf_counter()
    sent = dispatcher.dispatch(x, ids, probs)
    out = dispatcher.combine(sent.x_RH, sent.state)
    if backward:
        out.backward(grad)
    return time.perf_counter() - start


def main() -> None:
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    tokens, hidden, experts, topk = task["tokens"], task["hidden"], task["experts"], task["topk"]
    routing = RoutingSpec.parse("force_balanced")
    ids_np, probs_np = generate(routing, tokens, experts, topk, seed=task["seed"], rank=rank)
    ids, probs = torch.from_numpy(ids_np), torch.from_numpy(probs_np)
    counts = count_rows(
        [generate(routing, tokens, experts, topk, seed=task["seed"], rank=r)[0] for r in range(world)],
        experts,
        task["ranks_per_node"],
    )
    times: dict[str, list[float]] = {}
    for dtype_name in task["dtypes"]:
        dtype = getattr(torch, dtype_name)
        arms = {
            arm["label"]: load_target(get_backend(arm["dispatcher"]))(
                dist.group.WORLD, experts, hidden, topk, tokens, dtype, "cpu", arm["knobs"]
            )
            for arm in task["arms"]
        }
        generator = torch.Generator().manual_seed(rank)
        x = torch.randn(tokens, hidden, generator=generator).to(dtype)
        grad = torch.randn(tokens, hidden, generator=generator).to(dtype)
        for label, dispatcher in arms.items():
            outcome = check_dispatcher(dispatcher, seed=task["seed"])
            if not outcome.passed:
                raise SystemExit(f"{label} {dtype_name}: {outcome.detail}")
        for backward in (False, True) if dtype_name in task["backward_dtypes"] else (False,):
            x.requires_grad_(backward)
            for dispatcher in arms.values():
                one_iteration(dispatcher, x, ids, probs, grad, backward)
            labels = list(arms)
            for round_index in range(task["rounds"]):
                shift = round_index % len(labels)
                order = labels[shift:] + labels[:shift]
                for label in order + order[::-1]:
                    mine = torch.tensor(
                        [one_iteration(arms[label], x, ids, probs, grad, backward)], dtype=torch.float64
                    )
                    x.grad = None
                    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
                    key = f"{label}/{dtype_name}/{'fwdbwd' if backward else 'fwd'}"
                    times.setdefault(key, []).append(round(mine.item() * 1e6, 1))
        for dispatcher in arms.values():
            dispatcher.close()
    if rank == 0:
        print(json.dumps({"rows_domain_off_domain": counts.rows_domain_off_domain, "times_us": times}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
