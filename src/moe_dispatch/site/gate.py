"""The gate: proof, in a child process with limits, that a backend imports here with exactly what its user imports.

A package may raise anything at import, end the interpreter, crash or hang; none of that may reach this process, and a
broken backend must never stop a run that does not use it. Levels that need torch (initialises, moves tokens) belong to
the bench layer.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.errors import UsageError
from moe_dispatch.site.gate_apis import load_apis
from moe_dispatch.site.gate_consumer import Wanted, want
from moe_dispatch.site.gate_process import run_child
from moe_dispatch.site.gate_report import result_of
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site

__all__ = ["GateResult", "gate", "gate_all"]

TIMEOUT_S = 60.0
MEMORY_BYTES = 16 << 30
"""Private writable memory of the child; importing torch with CUDA takes about 2 GiB."""

SiteSource = Site | Callable[[], Site]
"""The machine, or what gives it once the children have ended (a probe that runs beside them)."""


@dataclass(frozen=True)
class _Limits:
    timeout_s: float
    python: str
    memory_bytes: int
    site: SiteSource | None
    cancelled: threading.Event


def gate(
    spec: BackendSpec,
    consumer: str | None = None,
    timeout_s: float = TIMEOUT_S,
    python: str = sys.executable,
    memory_bytes: int = MEMORY_BYTES,
    site: SiteSource | None = None,
) -> GateResult:
    """Import what a consumer of a backend imports, in a child process, and check what the package needs.

    Args:
        consumer: name of one of `spec.consumers`, or `name==version`; None takes the first, and our own adapter beside
            it. Without a version, the one that is installed decides, else the newest.
        timeout_s: the child is killed after that many seconds.
        python: interpreter to ask, by default this one.
        memory_bytes: private memory that the child may take.
        site: this machine; None leaves the level `supported` out.

    Raises:
        UsageError: the backend has no such consumer. A broken backend never raises.
    """
    limits = _Limits(timeout_s, python, memory_bytes, site, threading.Event())
    return _gate(want(spec, consumer, python), limits)


def gate_all(
    specs: Iterable[BackendSpec],
    timeout_s: float = TIMEOUT_S,
    python: str = sys.executable,
    workers: int = 2,
    memory_bytes: int = MEMORY_BYTES,
    site: SiteSource | None = None,
) -> dict[str, GateResult]:
    """Gate several backends at once; never raises for a broken one.

    Built-in backends share one child (they all import torch); only if that fails is each asked for itself.

    Returns:
        Results by backend name, in the order given.
    """
    wanted = [want(spec, None, python) for spec in specs]
    builtin = [each for each in wanted if each.spec.kind == "builtin"]
    limits = _Limits(timeout_s, python, memory_bytes, site, threading.Event())

    def together() -> list[GateResult]:
        needs = tuple(dict.fromkeys(need for each in builtin for need in each.needs))
        first = _gate(replace(builtin[0], consumer="moe-dispatch", needs=needs), limits)
        if first.available:
            return [first.model_copy(update={"backend": each.spec.name}) for each in builtin]
        return [_gate(each, limits) for each in builtin]

    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        try:
            jobs = [pool.submit(together)] if builtin else []
            jobs += [pool.submit(lambda one: [_gate(one, limits)], each) for each in wanted if each not in builtin]
            results = {result.backend: result for job in jobs for result in job.result()}
        except BaseException:
            limits.cancelled.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return {each.spec.name: results[each.spec.name] for each in wanted}


def gate_consumers(
    spec: BackendSpec,
    timeout_s: float = TIMEOUT_S,
    python: str = sys.executable,
    site: SiteSource | None = None,
) -> tuple[GateResult, ...]:
    """Gate one backend for each of its consumers' names: their imports differ, so one may work where another fails.

    Raises:
        UsageError: the backend has no consumer.
    """
    names = list(dict.fromkeys(each.name for each in spec.consumers))
    if not names:
        raise UsageError(f"{spec.name} has no consumers", "gate it by itself")
    return tuple(gate(spec, name, timeout_s, python, site=site) for name in names)


def _gate(wanted: Wanted, limits: _Limits) -> GateResult:
    spec = wanted.spec
    if wanted.refusal is not None:
        return wanted.refusal
    if not wanted.needs:
        reason = f"the specification of {spec.name} names nothing to import"
        return GateResult(backend=spec.name, reason_class="other", reason=reason, fix="give it consumers or a target")
    request = {
        "needs": [{"module": need.module, "symbols": list(need.symbols)} for need in wanted.needs],
        "apis": [[api.module, api.symbol] for api in load_apis()],
        "binaries": list(spec.needs.binaries),
        "memory_bytes": limits.memory_bytes,
        "alarm_s": math.ceil(limits.timeout_s) + 10,
    }
    try:
        ended = run_child(limits.python, request, limits.timeout_s, limits.cancelled)
    except OSError as error:
        reason = f"the gate cannot start {limits.python}: {error.strerror or error}"
        fix = "name an interpreter that exists; the temporary folder must be writable"
        return GateResult(backend=spec.name, reason_class="other", reason=reason, fix=fix)
    site = limits.site() if callable(limits.site) else limits.site
    return result_of(wanted, ended, limits.timeout_s, site)
