"""Libraries under a package, as the reason why it does not import: torch, CUDA, NCCL, NVSHMEM, the driver, a compiler.

The texts that mark them come from public reports: deepseek-ai/DeepEP#309, #481, #429 (undefined symbols),
sgl-project/sglang#40671 and DeepEP's own check at import (two NCCL copies),
NVIDIA/TransformerEngine:transformer_engine/pytorch/ep.py (NCCL too old), sgl-deep-ep 0.1.2 prerequisites.py (CUDA
of the wheel, no usable device), torch's own message about the driver (c10/cuda/CUDAFunctions.cpp).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

from moe_dispatch.site.gate_diagnosis import Diagnosis, first_line

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
_DRIVER_OLD = re.compile(r"(?i)nvidia driver on your system is too old|driver version is insufficient for CUDA runtime")
_CUDA_OTHER = re.compile(r"requires CUDA (\d+)[.\d]*,? but PyTorch uses CUDA (\d+)")
_NO_GPU = re.compile(
    r"(?i)driver does not expose a usable CUDA device|does not provide CUDA|no CUDA-capable device"
    r"|found no NVIDIA driver|no CUDA GPUs are available"
)
_COMPILER = re.compile(r"\b(?:CUDA_HOME|cuda_home|nvcc)\b")
_CUDART = re.compile(r"libcudart\.so\.(\d+)")
_CUDA_LINK = "__cudaRegisterLinkedBinary"
_ONE_NCCL = "leave one libnccl visible (LD_LIBRARY_PATH, LD_PRELOAD, system packages)"


def diagnose_library(module: str, error: dict[str, Any], report: dict[str, Any]) -> Diagnosis | None:
    """Which library an exception at import is about, None when about none."""
    message = str(error["message"])
    return (
        _undefined_symbol(module, message, report)
        or _nccl(module, error, report)
        or _machine(module, message)
        or _library(module, error, report)
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
            f"{module} needs {symbol}, which NCCL {report.get('nccl_version') or 'here'} does not have",
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
            f"{module} was built for {_built_for(report)}: undefined symbol {symbol}",
            f"rebuild {top} against torch {torch}",
        )
    if mangled.startswith("nvshmem"):
        return Diagnosis(
            "nvshmem-missing",
            f"{module} needs {symbol}, which the NVSHMEM that is loaded does not have",
            "put the NVSHMEM that it was built with first in LD_LIBRARY_PATH",
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
            f"{_ONE_NCCL}; alltoall is not affected",
        )
    other = _NCCL_OTHER.search(message)
    if other:
        return Diagnosis(
            "two-nccl-copies",
            f"{module} refuses the NCCL that is loaded, {other[1]}, because it expects {other[2]}",
            f"{_ONE_NCCL}, the one it was built with",
        )
    if _NCCL_OLD.search(message):
        return Diagnosis(
            "nccl-too-old",
            f"{module} refuses this NCCL: {first_line(message)}",
            "install the NCCL it asks for, and let LD_LIBRARY_PATH find that one first",
        )
    return None


def _built_for(report: dict[str, Any]) -> str:
    """The torch of the build, as far as the distribution names it, beside the one that runs."""
    built, running = report.get("requires_torch"), report.get("torch_version")
    return f"torch {built} (here {running or 'unknown'})" if built else "another torch"


def _machine(module: str, message: str) -> Diagnosis | None:
    """The driver and the GPU, as packages and torch complain of them."""
    if _DRIVER_OLD.search(message):
        return Diagnosis(
            "driver-too-old",
            f"{module} refuses this GPU driver: {first_line(message)}",
            "update the driver, or install torch and the package for a CUDA that it serves",
        )
    other = _CUDA_OTHER.search(message)
    if other:
        return Diagnosis(
            "wrong-cuda-major",
            f"{module} was built for CUDA {other[1]}, torch for CUDA {other[2]}",
            f"install a build for CUDA {other[2]}",
        )
    if _NO_GPU.search(message) or "libcuda.so.1: cannot open" in message:
        return Diagnosis(
            "no-gpu",
            f"{module} imports only where a GPU can be used: {first_line(message)}",
            "gate it on a node with a GPU, its driver and a torch built for CUDA",
        )
    return None


def _library(module: str, error: dict[str, Any], report: dict[str, Any]) -> Diagnosis | None:
    message = str(error["message"])
    match = _NO_LIBRARY.search(message)
    name = next(group for group in match.groups() if group) if match else ""
    about_compiler = error["type"] == "AssertionError" and not message and _COMPILER.search(str(error.get("raised_by")))
    if about_compiler or _COMPILER.fullmatch(name):
        what = first_line(message) or f"it raised `{error.get('raised_by')}`"
        return Diagnosis(
            "jit-compiler-missing",
            f"{module} finds no CUDA compiler: {name or 'nvcc'} is missing ({what})",
            "install the CUDA toolkit in the container and set CUDA_HOME to it",
        )
    if not name:
        return None
    if name.startswith("libnvshmem"):
        return Diagnosis(
            "nvshmem-missing",
            f"{module} is installed but NVSHMEM's {name} is missing: {first_line(message)}",
            f"install the NVSHMEM it was built with and put the folder of {name} first in LD_LIBRARY_PATH",
        )
    cudart, cuda = _CUDART.match(name), str(report.get("torch_cuda") or "")
    if cudart and cuda and cuda.partition(".")[0] != cudart[1]:
        return Diagnosis(
            "wrong-cuda-major",
            f"{module} was built for CUDA {cudart[1]}, torch for CUDA {cuda}: {name} is missing",
            f"install a build for CUDA {cuda.partition('.')[0]}",
        )
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
