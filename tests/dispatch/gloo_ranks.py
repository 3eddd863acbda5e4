"""Run one function on several gloo ranks of this host and bring back what each returned or raised."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "moe_dispatch.dispatch.hierarchical"])
_COLLECTIVE_TIMEOUT = timedelta(seconds=60)


def run_ranks(function: Callable[..., Any], world: int, *args: Any, timeout_s: float = 180.0) -> list[Any]:
    """Call `function(rank, world, *args)` on every rank inside a gloo world; returns the results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_enter, args=(function, rank, world, str(Path(folder) / "store"), theirs, args), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            outcomes = [pipe.recv() if pipe.poll(timeout_s) else ("error", "timed out") for pipe in pipes]
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
    failed = [f"rank {rank}: {text}" for rank, (kind, text) in enumerate(outcomes) if kind == "error"]
    assert not failed, "\n".join(failed)
    return [value for _, value in outcomes]


def _enter(
    function: Callable[..., Any], rank: int, world: int, store: str, pipe: Connection, args: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=_COLLECTIVE_TIMEOUT
        )
        result = function(rank, world, *args)
        dist.barrier()
        dist.destroy_process_group()
        pipe.send(("ok", result))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
