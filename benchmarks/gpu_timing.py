"""Timing kernels on one CUDA device, shared by the GPU benchmarks: interleaved, cold L2, launch time hidden."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch

_FLUSH_BYTES = 256 << 20
"""Several times the L2 of any GPU of the catalogue."""
_CYCLES_PER_US = 2_000
"""Of the spin; at the boost clock of current GPUs, or a little longer."""


def interleaved_us(
    work: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: int = 3, head_start_us: int = 200
) -> dict[str, float]:
    """Median microseconds of each entry on the device; the entries take turns, forwards and backwards.

    L2 is overwritten before every measurement. The device then spins for `head_start_us`, so that the host has queued
    the work when the clock starts; what it still has to launch after that is counted.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    names = list(work)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 else reversed(names):
            flush.zero_()
            torch.cuda._sleep(head_start_us * _CYCLES_PER_US)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work[name]()
            end.record()
            end.synchronize()
            if turn >= warm_up:
                times[name].append(start.elapsed_time(end) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def hardware() -> dict[str, object]:
    """The device as a RESULT line names it."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }
