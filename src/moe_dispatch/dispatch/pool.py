"""Reused host buffers: a fresh 64 MB tensor costs the CPU more in page faults than the copy that fills it.

A lease is an ordinary tensor. Its memory returns to the pool when the last tensor that views it is gone, autograd's
saved ones included, so a buffer that a backward pass still needs is never handed out twice. CUDA tensors come from
PyTorch's own caching allocator, which already does this.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

_GRAIN_BYTES = 1 << 16


class BufferPool:
    """Hands out uninitialised tensors of one device and takes their memory back when they die.

    Free memory is bounded by the largest amount ever leased at one time: what exceeds it goes back to the system,
    oldest buffer first.

    A lease that is part of a reference cycle dies inside any allocation, also one made here while the lock is held, or
    in another thread. So its finalizer only appends to a queue, and takes the lock if it is free.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: list[np.ndarray] = []
        self._returned: deque[np.ndarray] = deque()
        self._lock = threading.Lock()
        self._leased_bytes = 0
        self._peak_bytes = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor; pooled on the CPU, plain `torch.empty` elsewhere."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self.device.type != "cpu" or nbytes < _GRAIN_BYTES:
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)
        lease = self._take(nbytes)[:nbytes].view()
        weakref.finalize(lease, self._give_back, lease.base if lease.base is not None else lease)
        return torch.from_numpy(lease).view(dtype).view(tuple(shape))

    @property
    def leased_bytes(self) -> int:
        """Bytes now in the hands of callers."""
        with self._lock:
            self._collect()
            return self._leased_bytes

    def _take(self, nbytes: int) -> np.ndarray:
        with self._lock:
            self._collect()
            fitting = [b for b in self._free if nbytes <= b.nbytes <= 2 * nbytes + _GRAIN_BYTES]
            if fitting:
                buffer = min(fitting, key=lambda b: b.nbytes)
                self._free = [b for b in self._free if b is not buffer]
            else:
                buffer = np.empty(-(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES, dtype=np.uint8)
            self._leased_bytes += buffer.nbytes
            self._peak_bytes = max(self._peak_bytes, self._leased_bytes)
        return buffer

    def _give_back(self, buffer: np.ndarray) -> None:
        self._returned.append(buffer)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        """Free what finalizers returned, down to the bound; the caller holds the lock."""
        while self._returned:
            buffer = self._returned.popleft()
            self._leased_bytes -= buffer.nbytes
            self._free.append(buffer)
        while self._free and sum(b.nbytes for b in self._free) > self._peak_bytes:
            self._free.pop(0)

    def clear(self) -> None:
        """Drop all free memory; leases stay valid, and theirs is not kept either."""
        with self._lock:
            self._collect()
            self._free.clear()
            self._peak_bytes = 0
