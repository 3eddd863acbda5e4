"""One rank's surroundings: process groups, agreement between ranks, barriers, where it is, what it runs on.

Agreement and timing results travel over a gloo group of their own, so that a dispatcher that leaves its group in
disorder cannot corrupt them.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import moe_dispatch
from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.progress import ProgressWriter

T = TypeVar("T")
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_SKEW_CYCLES = 2_000_000


class Rank:
    """This rank. Construction is collective over all ranks.

    Fields:
        group: the expert-parallel group (all ranks).
        hosts: host of every rank; nodes that share a host name get `#node` appended.
        ranks_per_domain: of the plan, or the ranks of one node.
    """

    def __init__(self, plan: BenchPlan, progress: ProgressWriter) -> None:
        self.progress = progress
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cpu")
        if plan.device == "cuda":
            self.device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        # The launcher stops a hang first: it can say which arm it was and dump every rank's stack.
        limit = timedelta(seconds=2 * plan.arm_timeout_s + plan.start_timeout_s)
        dist.init_process_group(_BACKENDS[plan.device], timeout=limit)
        group = dist.group.WORLD
        assert group is not None
        self.group: dist.ProcessGroup = group
        self._control: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=limit)
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._flag = torch.zeros(1, device=self.device)
        node, local_world = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        self.nodes = int(os.environ["GROUP_WORLD_SIZE"])
        self.ranks_per_domain = plan.ranks_per_domain or local_world
        names = self.gather((socket.gethostname(), node))
        shared = len({name for name, _ in names}) < self.nodes
        self.hosts = tuple(f"{name}#{index}" if shared else name for name, index in names)
        progress.host_is(self.hosts[self.rank])

    def gather(self, value: T) -> list[T]:
        """Values of all ranks, by rank; collective over the control group."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._control)
        return values

    def gather_times(self, times: torch.Tensor) -> torch.Tensor:
        """Stack one float64 CPU tensor per rank along a new first axis; collective over the control group."""
        parts = [torch.empty_like(times) for _ in range(self.world)]
        dist.all_gather(parts, times, group=self._control)
        return torch.stack(parts)

    def barrier(self) -> None:
        """Line the ranks up before a timed iteration.

        On CUDA a short spin kernel and a tiny all-reduce go ahead in the stream, so that kernels of the iteration queue
        behind them and launch skew between hosts stays out of the measurement.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            dist.barrier(group=self._control)
            torch.cuda._sleep(_SKEW_CYCLES)
            dist.all_reduce(self._flag, group=self.group)
        else:
            dist.barrier(group=self._control)

    def close(self) -> None:
        """Wait for everyone, then leave all groups."""
        dist.barrier(group=self._control)
        dist.destroy_process_group()

    def site_fields(self) -> dict[str, Any]:
        """Contract fields of the site that only ranks can see."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else _cpu_name()
        return {
            "device": self.device.type,
            "device_name": name,
            "transport": _BACKENDS[self.device.type],
            "nodes": self.nodes,
            "ranks": self.world,
            "ranks_per_node": int(os.environ["LOCAL_WORLD_SIZE"]),
            "ranks_per_domain": self.ranks_per_domain,
            "cpu_count": os.cpu_count(),
            "threads_per_rank": torch.get_num_threads(),
        }

    def stack_fields(self) -> dict[str, Any]:
        """Contract fields of the software stack; `nccl` and `cuda` are `none` on a CPU."""
        on_gpu = self.device.type == "cuda"
        nccl = "none"
        if on_gpu:
            nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
        return {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda) if on_gpu else "none",
            "nccl": nccl,
            "moe_dispatch": moe_dispatch.__version__,
        }

    def labels(self) -> tuple[str, ...]:
        """`benchmark_only` (synthetic data, no optimizer) and `oversubscribed` (more ranks than GPUs or CPU cores)."""
        seats = torch.cuda.device_count() if self.device.type == "cuda" else (os.cpu_count() or 1)
        crowded = int(os.environ["LOCAL_WORLD_SIZE"]) > seats
        return ("benchmark_only", "oversubscribed") if any(self.gather(crowded)) else ("benchmark_only",)


def _cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
