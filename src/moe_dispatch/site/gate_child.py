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


def run(request: dict[str, Any], report_path: str, facts: Any) -> None:
    """Import each need in order and write a report after each step.

    Args:
        request: `needs` (list of {module, symbols}), `apis` (pairs to look for), `binaries` (modules with compiled
            parts), `memory_bytes`, `alarm_s`.
        report_path: JSON file to write: `step` (what was being imported), `found` (the first top-level module can be
            located), what `gate_child_facts` says of it, and either `ok`, `absent` (symbols that are not there) with
            what it `offers`, or `error` (type, message, missing module, the line that raised, traceback).
        facts: the module `gate_child_facts`.
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
            if "locations" not in report and report["found"]:
                report.update(_quietly(facts.provider, top), binaries=_quietly(facts.binaries, request["binaries"]))
            _write(report, report_path)
            # as `from module import symbols` does it: a symbol may be a submodule that is yet to be imported
            module = __import__(need["module"], fromlist=need["symbols"] or ["__name__"])
            report.setdefault("file", getattr(module, "__file__", None))
            absent = [name for name in need["symbols"] if not hasattr(module, name)]
        except BaseException as error:
            report["error"] = _explain(error)
            break
        if absent:
            public = [name for name in dir(module) if not name.startswith("_")]
            report.update(absent=absent, offers=public[:_MAX_NAMES])
            break
    else:
        report["ok"] = True
    # written first without what follows: it calls into libraries that may be broken
    _write(report, report_path)
    report.update(_quietly(facts.loaded), apis=facts.offered(request["apis"]))
    _write(report, report_path)


def _quietly(look: Any, *arguments: Any) -> Any:
    """What a look at foreign files says, or nothing: they may be malformed, and the gate does not depend on them."""
    try:
        return look(*arguments)
    except Exception:
        return {}


def _facts() -> Any:
    """The module beside this file, which is no package to the interpreter under test."""
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "gate_child_facts.py")
    spec = importlib.util.spec_from_file_location("_moe_dispatch_gate_child_facts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    cause = error.__cause__ or error.__context__
    return {
        "type": type(error).__name__,
        "message": message[:_MAX_CHARS],
        "missing_module": error.name if isinstance(error, ModuleNotFoundError) else None,
        "caused_by_missing": cause.name if isinstance(cause, ModuleNotFoundError) else None,
        "raised_by": frames[-1].line if frames else None,
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MAX_CHARS:],
    }


def _limit(kind: int, wanted: int) -> None:
    """Lower a limit; one that is stricter already stays, because only root may raise it."""
    hard = resource.getrlimit(kind)[1]
    lowered = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (lowered, lowered))


def _write(report: dict[str, Any], path: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    own = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != own]  # must not shadow a backend's modules
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())  # ranks start with `python -m`, so a source folder here is what they import
    run(json.loads(sys.argv[1]), sys.argv[2], _facts())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what a module does at exit is not under test
