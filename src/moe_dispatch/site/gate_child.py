"""Runs in the child process of a gate: imports what one consumer of a backend imports and writes down what happened.

Called by path with any interpreter, so it needs nothing but the standard library. A module under test may raise
anything, end the interpreter, crash or hang; the file is written step by step so that the parent knows how far it came.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import sys
import traceback
from importlib import metadata
from typing import Any

_MAX_NAMES = 60
_MAX_CHARS = 4000


def run(request: dict[str, Any], report_path: str) -> None:
    """Import each need in order and write a report after each step.

    Args:
        request: `needs` (list of {module, symbols}), `memory_bytes`, `alarm_s`.
        report_path: JSON file to write: `step` (what was being imported), `found` (the first top-level module can be
            located), and either `ok`, `absent` (symbols that are not there) with what it `offers`, or `error` (type,
            message, missing module, the line that raised, traceback).
    """
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, request["memory_bytes"])
    signal.alarm(request["alarm_s"])  # ends an orphan whose parent died without killing it
    report: dict[str, Any] = {"ok": False, "torch_version": _version("torch")}
    for need in request["needs"]:
        top = need["module"].partition(".")[0]
        report.update(step=need["module"], top=top, error=None)
        _write(report, report_path)
        try:
            report["found"] = importlib.util.find_spec(top) is not None
            _write(report, report_path)
            # as `from module import symbols` does it: a symbol may be a submodule that is yet to be imported
            module = __import__(need["module"], fromlist=need["symbols"] or ["__name__"])
            report.setdefault("file", getattr(module, "__file__", None))
            _describe(report, top)
            absent = [name for name in need["symbols"] if not hasattr(module, name)]
        except BaseException as error:
            _describe(report, top)
            report["error"] = _explain(error)
            report["nccl_copies"] = _mapped_nccl()
            _write(report, report_path)
            return
        if absent:
            public = [name for name in dir(module) if not name.startswith("_")]
            report.update(absent=absent, offers=public[:_MAX_NAMES])
            _write(report, report_path)
            return
    report.update(ok=True, nccl_copies=_mapped_nccl())
    _write(report, report_path)


def _describe(report: dict[str, Any], top: str) -> None:
    """Note which distribution provides the first module that was asked for."""
    if "provider" in report or not report.get("found"):
        return
    try:
        names = metadata.packages_distributions().get(top) or []
        report["provider"] = names[0] if names else None
        report["version"] = metadata.version(names[0]) if names else None
    except Exception:  # foreign metadata may be malformed; the gate does not depend on it
        report["provider"] = None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except Exception:
        return None


def _explain(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)
    except Exception:  # a foreign exception class may fail even at this
        message = ""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": type(error).__name__,
        "message": message[:_MAX_CHARS],
        "missing_module": error.name if isinstance(error, ModuleNotFoundError) else None,
        "raised_by": frames[-1].line if frames else None,
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MAX_CHARS:],
    }


def _limit(kind: int, wanted: int) -> None:
    """Lower a limit; one that is stricter already stays, because only root may raise it."""
    hard = resource.getrlimit(kind)[1]
    lowered = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (lowered, lowered))


def _mapped_nccl() -> list[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libnccl.so" in line}
    except OSError:
        return []
    return sorted({os.path.realpath(path) for path in paths})


def _write(report: dict[str, Any], path: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    own = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != own]  # must not shadow a backend's modules
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())  # ranks start with `python -m`, so a source folder here is what they import
    run(json.loads(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what a module does at exit is not under test
