"""Memory that one arm needs: what its own steps added, so that arms built in one process do not count each other's.

On CUDA: the allocator's peak and reserved bytes, and the device-used delta, which also sees buffers outside it.
On a CPU only the last one exists: the peak of the resident set (VmHWM, reset through /proc/self/clear_refs, proc(5)).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from moe_dispatch.evidence.record import Memory


class MemoryAccount:
    """Running account of one arm on one rank; all values in bytes.

    Memory kept from earlier steps of this arm counts in later peaks; memory that other arms keep does not.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept = {"allocated": 0, "reserved": 0, "used": 0}
        self.peak = {"allocated": 0, "reserved": 0, "used": 0}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Attribute what happens inside to this arm."""
        _release_unused(self._device)
        before = _now(self._device)
        _reset_peak(self._device)
        yield
        top = _peak(self._device)
        _release_unused(self._device)
        after = _now(self._device)
        for name, value in before.items():
            self.peak[name] = max(self.peak[name], self._kept[name] + top[name] - value)
            self._kept[name] += after[name] - value

    def as_memory(self) -> Memory:
        """Peaks so far."""
        if self._device.type != "cuda":
            return Memory(device_used_delta_bytes=self.peak["used"])
        return Memory(
            allocated_peak_bytes=self.peak["allocated"],
            reserved_peak_bytes=self.peak["reserved"],
            device_used_delta_bytes=self.peak["used"],
        )


def largest(memories: list[Memory]) -> Memory:
    """Maximum over ranks, field by field; unknown stays unknown."""

    def top(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return max(known) if known else None

    return Memory(
        allocated_peak_bytes=top([m.allocated_peak_bytes for m in memories]),
        reserved_peak_bytes=top([m.reserved_peak_bytes for m in memories]),
        device_used_delta_bytes=top([m.device_used_delta_bytes for m in memories]),
    )


def _now(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        resident = _status_bytes("VmRSS")
        return {"allocated": 0, "reserved": 0, "used": resident}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "used": total - free,
    }


def _peak(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {"allocated": 0, "reserved": 0, "used": max(_status_bytes("VmHWM"), _status_bytes("VmRSS"))}
    # Cached blocks are not given back before this is read, so the device's used bytes are still at their peak.
    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
        "used": _now(device)["used"],
    }


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _release_unused(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    elif sys.platform == "linux":
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(name: str) -> int:
    """A kibibyte field of /proc/self/status in bytes; 0 where there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
