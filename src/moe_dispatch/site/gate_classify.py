"""From what a gate's child process reported to a reason class, a sentence and a fix.

Which library a message is about is told apart in `gate_classify_library.py`, which names the public reports.
"""

from __future__ import annotations

import re
import signal
from typing import Any

from moe_dispatch.site.gate_apis import served_by, variant_of
from moe_dispatch.site.gate_classify_library import diagnose_library
from moe_dispatch.site.gate_diagnosis import Diagnosis, first_line
from moe_dispatch.site.gate_shadow import is_plain_folder, shadow

_OUT_OF_MEMORY = re.compile(r"std::bad_alloc|(?i:cannot allocate memory)|\bMemoryError\b")
_NOT_SPECIFIC = ("missing-feature", "not-installed", "other")


def diagnose_exit(step: str, returncode: int, output: str = "") -> Diagnosis:
    """A child that ended without a result: killed by a signal, or by the module itself."""
    if _OUT_OF_MEMORY.search(output):
        return _out_of_memory(step)
    if returncode < 0:
        try:
            how = f"was ended by {signal.Signals(-returncode).name}"
        except ValueError:
            how = f"was ended by signal {-returncode}"
    else:
        how = f"was ended by the module with status {returncode}"
    return Diagnosis(
        "crashed",
        f"importing {step} crashed: the process {how}",
        "read the output that is kept with this result; rebuild the package for this driver and GPU",
    )


def diagnose_timeout(step: str, timeout_s: float) -> Diagnosis:
    """A child that had to be killed."""
    return Diagnosis(
        "init-timeout",
        f"importing {step} did not end within {timeout_s:g} s",
        "look for a stale build lock or a file system that hangs; a longer time limit rarely helps",
    )


def diagnose_report(report: dict[str, Any], install_hint: str) -> Diagnosis:
    """A child that reported an exception or absent symbols."""
    diagnosis = _diagnose(report, install_hint)
    shadowed = shadow(report)
    if shadowed and (diagnosis.reason_class in _NOT_SPECIFIC or is_plain_folder(report)):
        return Diagnosis(
            "shadowed-module",
            f"{shadowed}; {diagnosis.reason}",
            "start from another folder, or remove what is in the way, so that the installed package is imported",
        )
    return diagnosis


def _diagnose(report: dict[str, Any], install_hint: str) -> Diagnosis:
    module = str(report["step"])
    if report.get("absent"):
        return _absent(module, report, install_hint)
    error = report["error"]
    if error["missing_module"] is not None:
        return _no_module(module, report, install_hint)
    message = str(error["message"])
    if error["type"] == "MemoryError" or _OUT_OF_MEMORY.search(message):
        return _out_of_memory(module)
    if error["type"] in ("SystemExit", "KeyboardInterrupt"):
        return Diagnosis(
            "crashed",
            f"importing {module} ends the interpreter ({error['type']}: {message})",
            "run the import by hand to see what it checks; repair or uninstall the package",
        )
    found = diagnose_library(module, error, report)
    if found:
        return found
    if error.get("caused_by_missing"):
        absent = str(error["caused_by_missing"]).partition(".")[0]
        what = f"{module} needs the module {absent}, which is not there: {first_line(message)}"
        return Diagnosis("missing-library", what, f"install {absent} beside it")
    if error["type"] == "ImportError" and "cannot import name" in message:
        return Diagnosis("missing-feature", f"{module} cannot be imported: {first_line(message)}", install_hint)
    what = first_line(message) or f"no message, raised by `{error.get('raised_by')}`"
    return Diagnosis(
        "other",
        f"importing {module} failed with {error['type']}: {what}",
        "read the traceback that is kept with this result",
    )


def _out_of_memory(module: str) -> Diagnosis:
    return Diagnosis(
        "out-of-memory",
        f"importing {module} needs more memory than the gate allows or the host has",
        "free memory on this host, or raise the memory limit of the job",
    )


def _absent(module: str, report: dict[str, Any], install_hint: str) -> Diagnosis:
    missing = ", ".join(report["absent"])
    classes = [name for name in report["offers"] if name[:1].isupper()][:8]
    offers = f"; it offers {', '.join(classes)}" if classes else ""
    return _feature(
        f"{module} is installed but has no {missing}{offers}",
        [f"{module}.{name}" for name in report["absent"]],
        report,
        install_hint,
    )


def _feature(reason: str, missing: list[str], report: dict[str, Any], install_hint: str) -> Diagnosis:
    """A package that is there without what was asked for: what it can serve instead, and the fix for this very gap."""
    offered = report.get("apis") or []
    serves = served_by(offered)
    known = variant_of(missing, offered)
    return Diagnosis(
        "missing-feature",
        f"{reason} ({serves})" if serves else reason,
        known.fix if known else install_hint,
        known.variant if known else "",
    )


def _no_module(module: str, report: dict[str, Any], install_hint: str) -> Diagnosis:
    missing, top = str(report["error"]["missing_module"]), str(report["top"])
    if missing == top and not report.get("found"):
        return Diagnosis("not-installed", f"{top} is not installed", install_hint)
    if missing.partition(".")[0] == top:
        return _feature(f"{top} is installed but has no module {missing}", [missing], report, install_hint)
    return Diagnosis(
        "missing-library",
        f"{module} is installed but needs the module {missing}, which is not",
        f"install {missing.partition('.')[0]} beside it",
    )
