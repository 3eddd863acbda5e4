"""From what a gate's child process reported to a reason class, a sentence and a fix.

The classes and the texts that mark them come from public reports: deepseek-ai/DeepEP#309, #481, #429 (undefined
symbols), sgl-project/sglang#40671 and DeepEP's own check at import (two NCCL copies),
NVIDIA-NeMo/Megatron-Bridge#1101 (no HybridEPBuffer), NVIDIA/TransformerEngine:transformer_engine/pytorch/ep.py (NCCL
too old).
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from typing import Any

from moe_dispatch.site.gate_result import ReasonClass

_UNDEFINED = re.compile(r"undefined symbol: (\S+?)(?:,|\s|$)")
_NO_LIBRARY = re.compile(
    r"(lib[^\s:]+\.so[^\s:]*): cannot open shared object file|version [`'](\S+)' not found"
    r"|(?:No such file or directory|cannot find|not found)\b[^\n]*?(lib[\w+.-]+\.so[\w.]*|CUDA_HOME|nvcc)"
    r"|\b[Nn]o (lib[\w+.-]+\.so[\w.]*) found"
)
_TORCH_SYMBOL = re.compile(
    r"THP[A-Z]|\b_ZN?K?[\dA-Z_a-z]*?(?:3c10|2at\d|2atE|5torch)|\bc10::|\bat::|\btorch::|aoti_torch_|\d?c10d?E"
)
_NCCL_OLD = re.compile(r"(?i)nccl[^\n]{0,60}?(?:>=|at least|or newer|too old)")
_NCCL_TWICE = re.compile(r"(?i)duplicate nccl|multiple (?:copies of )?(?:lib)?nccl")
_NCCL_OTHER = re.compile(r"(?i)invalid nccl versions?: *(\S+) \(loaded\) v\.?s\.? *(\S+) \(expected\)")
_OUT_OF_MEMORY = re.compile(r"std::bad_alloc|(?i:cannot allocate memory)|\bMemoryError\b")
_MAX_LINE = 300
_CUDA_LINK = "__cudaRegisterLinkedBinary"


@dataclass(frozen=True)
class Diagnosis:
    """Class, sentence and fix."""

    reason_class: ReasonClass
    reason: str
    fix: str


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
    found = _undefined_symbol(module, message, report) or _nccl(module, error, report) or _library(module, message)
    if found:
        return found
    if error["type"] == "ImportError" and "cannot import name" in message:
        return Diagnosis("missing-feature", f"{module} cannot be imported: {first_line(message)}", install_hint)
    what = first_line(message) or f"no message, raised by `{error.get('raised_by')}`"
    return Diagnosis(
        "other",
        f"importing {module} failed with {error['type']}: {what}",
        "read the traceback that is kept with this result",
    )


def first_line(text: str) -> str:
    """The first line that is not empty, cut to what a table can show."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " ..."


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return first_line("\n".join(reversed(text.splitlines())))


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
    return Diagnosis("missing-feature", f"{module} is installed but has no {missing}{offers}", install_hint)


def _no_module(module: str, report: dict[str, Any], install_hint: str) -> Diagnosis:
    missing, top = str(report["error"]["missing_module"]), str(report["top"])
    if missing == top and not report.get("found"):
        return Diagnosis("not-installed", f"{top} is not installed", install_hint)
    if missing.partition(".")[0] == top:
        return Diagnosis("missing-feature", f"{top} is installed but has no module {missing}", install_hint)
    return Diagnosis(
        "missing-library",
        f"{module} is installed but needs the module {missing}, which is not",
        f"install {missing.partition('.')[0]} beside it",
    )


def _undefined_symbol(module: str, message: str, report: dict[str, Any]) -> Diagnosis | None:
    match = _UNDEFINED.search(message)
    if match is None:
        return None
    mangled, top = match[1], str(report["top"])
    symbol = demangle(mangled)
    if mangled.startswith("nccl"):
        return Diagnosis(
            "nccl-too-old",
            f"{module} needs {symbol}, which the NCCL that is loaded does not have",
            "install the NCCL it was built with, and leave only that libnccl visible",
        )
    if mangled.startswith(_CUDA_LINK) or re.match(rf"_Z(?:T\w)?N[VKrRO]*{len(top)}{re.escape(top)}", mangled):
        return Diagnosis(
            "build-incomplete",
            f"{module} was built incompletely: undefined symbol {symbol}",
            f"rebuild {top} from a clean folder; check that its build flags fit this GPU",
        )
    if _TORCH_SYMBOL.search(mangled) or _TORCH_SYMBOL.search(symbol):
        torch = report.get("torch_version") or "of this environment"
        return Diagnosis(
            "torch-abi-mismatch",
            f"{module} was built for another torch: undefined symbol {symbol}",
            f"rebuild {top} against torch {torch}",
        )
    return Diagnosis(
        "missing-library",
        f"{module} needs a library that is absent or too old: undefined symbol {symbol}",
        f"rebuild {top} here, or install the version of the library that it was built with",
    )


def _nccl(module: str, error: dict[str, Any], report: dict[str, Any]) -> Diagnosis | None:
    message = str(error["message"])
    copies = report.get("nccl_copies") or []
    about_nccl = "nccl" in (message + str(error["traceback"])).lower()
    if _NCCL_TWICE.search(message) or (error["type"] == "AssertionError" and about_nccl and len(copies) > 1):
        where = f": {', '.join(copies)}" if copies else ""
        return Diagnosis(
            "two-nccl-copies",
            f"{module} refuses to load because more than one NCCL is loaded{where}",
            "leave one libnccl visible (LD_LIBRARY_PATH, LD_PRELOAD, system packages); alltoall is not affected",
        )
    other = _NCCL_OTHER.search(message)
    if other:
        return Diagnosis(
            "two-nccl-copies",
            f"{module} refuses the NCCL that is loaded, {other[1]}, because it expects {other[2]}",
            "leave one libnccl visible (LD_LIBRARY_PATH, LD_PRELOAD, system packages), the one it was built with",
        )
    if _NCCL_OLD.search(message):
        return Diagnosis(
            "nccl-too-old",
            f"{module} refuses this NCCL: {first_line(message)}",
            "install the NCCL it asks for, and let LD_LIBRARY_PATH find that one first",
        )
    return None


def _library(module: str, message: str) -> Diagnosis | None:
    match = _NO_LIBRARY.search(message)
    if match is None:
        return None
    name = next(group for group in match.groups() if group)
    return Diagnosis(
        "missing-library",
        f"{module} is installed but {name} is missing: {first_line(message)}",
        f"install what provides {name}, or add its folder to LD_LIBRARY_PATH",
    )


def demangle(symbol: str) -> str:
    """The readable form of a C++ symbol, or the symbol itself where `c++filt` is absent or does not know it."""
    tool = shutil.which("c++filt")
    if tool is None or not symbol.startswith("_Z"):
        return symbol
    try:
        done = subprocess.run([tool, "--", symbol], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return symbol
    return done.stdout.strip() or symbol
