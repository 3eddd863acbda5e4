"""Backends that stop at one level of the gate each; ranks import them by target."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.dispatch.alltoall import AllToAllDispatcher
from moe_dispatch.dispatch.base import Dispatched

GIVES_UP_S = 12.0
"""Limit for a backend that hangs: torch is imported and a group is made within it, also on a busy machine."""

SOON_S = 3.0
"""Limit for one that never gets to its buffer, however fast the machine is."""

_FAULTY_RANK = 1


def package(target: str) -> BackendSpec:
    """The specification of one backend of this module."""
    return BackendSpec(
        name="made-up",
        title="made up",
        summary="made up for a test",
        kind="package",
        target=f"gate_backends:{target}",
        platforms=("cpu", "cuda"),
    )


class _FaultyAtBuild(AllToAllDispatcher):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.rank == _FAULTY_RANK:
            self.misbehave()

    def misbehave(self) -> None:
        raise NotImplementedError


class RefusesToBuild(_FaultyAtBuild):
    def misbehave(self) -> None:
        raise RuntimeError("no buffer here")


class NeedsNewerNccl(_FaultyAtBuild):
    def misbehave(self) -> None:
        raise RuntimeError("NCCL EP requires NCCL >= 2.30.4, found 2.28.9 at runtime")


class CrashesAtBuild(_FaultyAtBuild):
    def misbehave(self) -> None:
        ctypes.string_at(0)


class HangsAtBuild(_FaultyAtBuild):
    def misbehave(self) -> None:
        time.sleep(3600)


class LosesTokens(AllToAllDispatcher):
    def dispatch_finish(self, pending: Any) -> Dispatched:
        received = super().dispatch_finish(pending)
        received.x_RH.data.zero_()
        return received


class CrashesInDispatch(AllToAllDispatcher):
    def dispatch_finish(self, pending: Any) -> Dispatched:
        if self.rank == _FAULTY_RANK:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().dispatch_finish(pending)


class HangsInDispatch(AllToAllDispatcher):
    def dispatch_finish(self, pending: Any) -> Dispatched:
        if self.rank == _FAULTY_RANK:
            time.sleep(3600)
        return super().dispatch_finish(pending)
