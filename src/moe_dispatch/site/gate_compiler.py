"""Whether the CUDA compiler that a package calls at run time really compiles here: one empty kernel, in a child."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from moe_dispatch.site.gate_process import end_session, tail

TIMEOUT_S = 60.0
_KERNEL = "__global__ void moe_dispatch_gate() {}\n"


def try_compiler(variable: str, capability: str | None, environment: Mapping[str, str]) -> str:
    """Compile an empty kernel with `$variable/bin/nvcc`.

    Args:
        variable: environment variable that names the CUDA folder.
        capability: compute capability to compile for; None takes the compiler's default.

    Returns:
        Why it cannot be used, in half a sentence; empty if it compiled.
    """
    home = environment.get(variable, "")
    if not home:
        return f"{variable} is not set"
    nvcc = Path(home, "bin", "nvcc")
    if not os.access(nvcc, os.X_OK):
        return f"{nvcc} ({variable}) does not exist or cannot be executed"
    with tempfile.TemporaryDirectory(prefix="moe-dispatch-nvcc-") as folder:
        source, log = Path(folder, "kernel.cu"), Path(folder, "log")
        source.write_text(_KERNEL, encoding="utf-8")
        command = [str(nvcc), "-cubin", "-o", str(Path(folder, "kernel.cubin")), str(source)]
        if capability:
            command.insert(1, f"-arch=sm_{capability.replace('.', '')}")
        try:
            with open(log, "wb") as output:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            return f"{nvcc} cannot be started: {error.strerror or error}"
        try:
            status: int | None = child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_session(child)
        if status is None:
            return f"{nvcc} did not compile an empty kernel within {TIMEOUT_S:g} s"
        if status or not Path(folder, "kernel.cubin").is_file():
            words = " ".join(tail(log).split())[:200] or "it printed nothing"
            return f"{nvcc} does not compile an empty kernel (status {status}): {words}"
        return ""
