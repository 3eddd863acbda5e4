"""The gate: proof, in a child process with limits, that a backend imports here with exactly what its user imports.

A package may raise anything at import, end the interpreter, crash or hang; none of that may reach this process, and a
broken backend must never stop a run that does not use it. Levels that need torch (initialises, moves tokens) belong to
the bench layer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_dispatch.core.backend import BackendSpec, SymbolNeed
from moe_dispatch.core.errors import UsageError
from moe_dispatch.site.environment import mask_environment_values
from moe_dispatch.site.gate_classify import Diagnosis, diagnose_exit, diagnose_report, diagnose_timeout, last_line
from moe_dispatch.site.gate_result import GateResult

__all__ = ["GateResult", "gate", "gate_all"]

TIMEOUT_S = 60.0
MEMORY_BYTES = 16 << 30
"""Private writable memory of the child; importing torch with CUDA takes about 2 GiB."""

_TAIL = 4000
_POLL_S = 0.05
_KILLED_S = 5.0
_CHILD = Path(__file__).with_name("gate_child.py")
_TORCH = (
    SymbolNeed(module="torch"),
    SymbolNeed(module="torch.distributed", symbols=("all_to_all_single", "init_process_group")),
)
_TORCH_HINT = "install torch for this machine, or `pip install 'moe-dispatch[torch]'`"


@dataclass(frozen=True)
class _Ended:
    """How a child ended: `report` is None if it never wrote one; `returncode` is None if it was killed."""

    report: dict[str, Any] | None
    returncode: int | None
    output: str
    seconds: float


def gate(
    spec: BackendSpec,
    consumer: str | None = None,
    timeout_s: float = TIMEOUT_S,
    python: str = sys.executable,
    memory_bytes: int = MEMORY_BYTES,
) -> GateResult:
    """Import what a consumer of a backend imports, in a child process.

    Args:
        consumer: name of one of `spec.consumers`; None takes the first, and our own adapter beside it.
        timeout_s: the child is killed after that many seconds.
        python: interpreter to ask, by default this one.
        memory_bytes: private memory that the child may take.

    Raises:
        UsageError: the backend has no such consumer. A broken backend never raises.
    """
    name, needs = _needs(spec, consumer)
    return _gate(spec, name, needs, timeout_s, python, memory_bytes, threading.Event())


def gate_all(
    specs: Iterable[BackendSpec],
    timeout_s: float = TIMEOUT_S,
    python: str = sys.executable,
    workers: int = 2,
    memory_bytes: int = MEMORY_BYTES,
) -> dict[str, GateResult]:
    """Gate several backends at once; never raises for a broken one.

    Built-in backends share one child (they all import torch); only if that fails is each asked for itself.

    Returns:
        Results by backend name, in the order given.
    """
    wanted = list(specs)
    builtin = [spec for spec in wanted if spec.kind == "builtin"]
    cancelled = threading.Event()

    def one(spec: BackendSpec) -> list[GateResult]:
        name, needs = _needs(spec, None)
        return [_gate(spec, name, needs, timeout_s, python, memory_bytes, cancelled)]

    def together() -> list[GateResult]:
        needs = list(dict.fromkeys(need for spec in builtin for need in _needs(spec, None)[1]))
        first = _gate(builtin[0], "moe-dispatch", needs, timeout_s, python, memory_bytes, cancelled)
        if first.available:
            return [first.model_copy(update={"backend": spec.name}) for spec in builtin]
        return [result for spec in builtin for result in one(spec)]

    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        try:
            jobs = [pool.submit(together)] if builtin else []
            jobs += [pool.submit(one, spec) for spec in wanted if spec.kind != "builtin"]
            results = {result.backend: result for job in jobs for result in job.result()}
        except BaseException:
            cancelled.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return {spec.name: results[spec.name] for spec in wanted}


def _needs(spec: BackendSpec, consumer: str | None) -> tuple[str, list[SymbolNeed]]:
    known = [each.name for each in spec.consumers]
    if consumer is not None and consumer not in known:
        raise UsageError(
            f"{spec.name} has no consumer {consumer!r}",
            f"known: {', '.join(known) or 'none'}; leave it out for the first",
        )
    chosen = next((each for each in spec.consumers if consumer in (None, each.name)), None)
    needs = list(_TORCH) if spec.kind == "builtin" else []
    needs += chosen.needs if chosen else ()
    if consumer is None and spec.target is not None:
        module, _, attribute = spec.target.partition(":")
        needs.append(SymbolNeed(module=module, symbols=(attribute,)))
    return (chosen.name if chosen else "moe-dispatch"), needs


def _gate(
    spec: BackendSpec,
    consumer: str,
    needs: Sequence[SymbolNeed],
    timeout_s: float,
    python: str,
    memory_bytes: int,
    cancelled: threading.Event,
) -> GateResult:
    if not needs:
        reason = f"the specification of {spec.name} names nothing to import"
        return GateResult(backend=spec.name, reason_class="other", reason=reason, fix="give it consumers or a target")
    request = {
        "needs": [{"module": need.module, "symbols": list(need.symbols)} for need in needs],
        "memory_bytes": memory_bytes,
        "alarm_s": math.ceil(timeout_s) + 10,
    }
    try:
        ended = _run_child(python, request, timeout_s, cancelled)
    except OSError as error:
        reason = f"the gate cannot start {python}: {error.strerror or error}"
        fix = "name an interpreter that exists; the temporary folder must be writable"
        return GateResult(backend=spec.name, reason_class="other", reason=reason, fix=fix)
    return _result(spec, consumer, needs[0].module, ended, timeout_s)


def _run_child(python: str, request: dict[str, Any], timeout_s: float, cancelled: threading.Event) -> _Ended:
    """Start the child, wait for it, and leave no process of its session behind."""
    with tempfile.TemporaryDirectory(prefix="moe-dispatch-gate-") as folder:
        report_path, log_path = Path(folder, "report.json"), Path(folder, "output")
        begin = time.monotonic()
        with open(log_path, "wb") as log:
            child = subprocess.Popen(
                # unbuffered, so that what was printed before a crash or a hang is kept
                [python, "-u", "-X", "faulthandler", str(_CHILD), json.dumps(request), str(report_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                returncode = _wait(child, begin + timeout_s, cancelled)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # a driver call that hangs outlives even a kill
                    child.wait(_KILLED_S)
        seconds = time.monotonic() - begin
        try:
            report = json.loads(report_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            report = None
        return _Ended(report, returncode, _tail(log_path), seconds)


def _wait(child: subprocess.Popen[bytes], deadline: float, cancelled: threading.Event) -> int | None:
    while not cancelled.is_set():
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return child.wait(timeout=min(left, _POLL_S))
        except subprocess.TimeoutExpired:
            continue
    return None


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 3 * _TAIL))  # masking sees more than is kept, so that no secret is cut in two
        return file.read().decode("utf-8", "replace")


def _result(spec: BackendSpec, consumer: str, first: str, ended: _Ended, timeout_s: float) -> GateResult:
    report = ended.report or {}
    hint = spec.install_hint
    if spec.kind == "builtin" and str(report.get("top")) == "torch":
        hint = _TORCH_HINT
    diagnosis: Diagnosis | None = None
    if report.get("ok"):
        pass
    elif ended.returncode is None:
        diagnosis = diagnose_timeout(str(report.get("step", first)), timeout_s)
    elif report.get("error") or report.get("absent"):
        diagnosis = diagnose_report(report, hint)
    elif ended.report is None and ended.returncode >= 0:
        what = last_line(ended.output) or f"it ended with status {ended.returncode}"
        diagnosis = Diagnosis("other", f"the interpreter did not run the gate: {what}", "run it by hand")
    else:
        diagnosis = diagnose_exit(str(report.get("step", first)), ended.returncode, ended.output)
    error = report.get("error") or {}
    detail = "\n".join(part for part in (ended.output.strip(), error.get("traceback", "").strip()) if part)
    return GateResult(
        backend=spec.name,
        level_reached="imports" if diagnosis is None else "installed" if report.get("found") else "none",
        available=diagnosis is None,
        reason_class=diagnosis.reason_class if diagnosis else "",
        reason=mask_environment_values(diagnosis.reason) if diagnosis else "",
        fix=diagnosis.fix if diagnosis else "",
        consumer=consumer,
        provider=report.get("provider"),
        version=report.get("version"),
        file=report.get("file"),
        detail=mask_environment_values(detail)[-_TAIL:],
        seconds=ended.seconds,
    )
