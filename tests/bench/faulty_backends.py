"""Dispatchers that fail in one way each; ranks import them by target, with this folder on PYTHONPATH."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Any

import torch

from moe_dispatch.core.errors import UnsupportedByBackend
from moe_dispatch.dispatch.alltoall import AllToAllDispatcher
from moe_dispatch.dispatch.base import Dispatched

ORACLE_CALLS = 7
FAULTY_CALL = ORACLE_CALLS + 1 + 4 + 1
"""First iteration of the second visit: after the oracle's cases, one warm-up and a visit of four iterations."""

FAULTY_RANK = 1


class _CountingDispatcher(AllToAllDispatcher):
    calls = 0

    def dispatch_finish(self, pending: Any) -> Dispatched:
        self.calls += 1
        if self.calls == FAULTY_CALL and self.rank == FAULTY_RANK:
            self.misbehave()
        return super().dispatch_finish(pending)

    def misbehave(self) -> None:
        raise NotImplementedError


class KillDispatcher(_CountingDispatcher):
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class HangDispatcher(_CountingDispatcher):
    def misbehave(self) -> None:
        time.sleep(3600)


class OutOfMemoryDispatcher(_CountingDispatcher):
    def misbehave(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


class AddressSpaceDispatcher(_CountingDispatcher):
    """Asks the real allocator for more than the process may have."""

    def misbehave(self) -> None:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        torch.ones(1 << 28, dtype=torch.float32)


class ErrorDispatcher(_CountingDispatcher):
    def misbehave(self) -> None:
        raise ValueError("a bug in the backend")


class WrongRowsDispatcher(AllToAllDispatcher):
    """Hands each rank its rows with one value changed."""

    def dispatch_finish(self, pending: Any) -> Dispatched:
        sent = super().dispatch_finish(pending)
        wrong = sent.x_RH.clone()
        if self.rank == FAULTY_RANK and wrong.shape[0]:
            wrong[0, -1] += 1
        return Dispatched(
            x_RH=wrong, probs_R=sent.probs_R, tokens_per_expert_e=sent.tokens_per_expert_e, state=sent.state
        )


class RefusingDispatcher(AllToAllDispatcher):
    """One rank cannot serve the request; all ranks find out and refuse together."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        able = torch.tensor([int(self.rank != FAULTY_RANK)])
        torch.distributed.all_reduce(able, torch.distributed.ReduceOp.MIN, group=self.group)
        if not int(able):
            raise UnsupportedByBackend("refusing: this device is too old", "use alltoall")


class LoneRefuserDispatcher(AllToAllDispatcher):
    """Breaks the contract: one rank refuses alone while the others wait for it in a collective."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.rank == FAULTY_RANK:
            raise UnsupportedByBackend("lone: not on this rank")
        torch.distributed.barrier(group=self.group)


class StragglerDispatcher(AllToAllDispatcher):
    """One rank is slow by itself, when all communication of the iteration is over: the others do not wait for it."""

    hook: torch.utils.hooks.RemovableHandle | None = None

    def dispatch_start(self, x_TH: torch.Tensor, expert_ids_TK: torch.Tensor, probs_TK: torch.Tensor) -> Any:
        if self.hook is not None:
            self.hook.remove()
        if self.rank == FAULTY_RANK and x_TH.requires_grad:
            self.hook = x_TH.register_hook(lambda _: time.sleep(0.05))
        return super().dispatch_start(x_TH, expert_ids_TK, probs_TK)
