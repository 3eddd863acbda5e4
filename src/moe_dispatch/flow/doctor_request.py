"""What `doctor` is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import get_backend, load_backends
from moe_dispatch.site.gate import TIMEOUT_S

ARRIVE_S = 10.0
"""Default limit for all ranks to arrive: ranks of one launch start within a few seconds of each other."""


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """One examination.

    Fields:
        require: backends that must pass their gate on every host.
        backends: backends to look at, as names; empty means all, or those required.
        ep, etp, tp, pp, cp: parallel sizes after every override; None means not told, and what depends on it is left.
        tokens: that one rank routes in one micro-batch.
        site, nodes: a declared site instead of this machine.
        alone: look at this machine only, even inside a launch.
        arrive_s: seconds for all ranks to arrive; probe_s: for one probe of a package.
        prove: ranks to start here, on which every usable backend with an adapter is made and moves tokens; None starts
            none.
        port: where rank 0 listens; None takes the launcher's port or one of the next few.
    """

    require: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    ep: int | None = None
    etp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    tokens: int | None = None
    site: str | None = None
    nodes: int | None = None
    alone: bool = False
    arrive_s: float = ARRIVE_S
    probe_s: float = TIMEOUT_S
    prove: int | None = None
    port: int | None = None

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: a size, limit, port or combination that makes no sense.
        """
        for name in ("ep", "etp", "tp", "pp", "cp", "nodes", "prove"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name}={value} must be at least 1")
        if self.tokens is not None and self.tokens < 0:
            raise UsageError(f"--tokens={self.tokens} must not be negative")
        for name, seconds in (("--timeout", self.arrive_s), ("--probe-timeout", self.probe_s)):
            if not (0 < seconds <= 3600 and math.isfinite(seconds)):
                raise UsageError(f"{name}={seconds:g} must be above 0 and at most 3600 seconds")
        if self.port is not None and not 0 < self.port < 65536:
            raise UsageError(f"--port={self.port} is no port", "give one between 1024 and 65535")
        if self.site is None and self.nodes is not None:
            raise UsageError("--nodes belongs to a declared --site", "inside a launch the nodes are counted")
        if self.site is not None and self.require:
            raise UsageError(
                f"--require asks for proof on this machine, but --site {self.site} declares another one",
                "use --backend to look at a backend on a declared site",
            )

    def specs(self) -> dict[str, BackendSpec]:
        """Backends to look at, by name.

        Raises:
            UsageError: an unknown backend.
        """
        names = dict.fromkeys((*self.require, *self.backends))
        return {name: get_backend(name) for name in names} if names else load_backends()
