"""Whether a fused permute compiles and runs here: if not, permute fusion is off in all arms of a comparison.

Reports: NVIDIA/TransformerEngine#2286, #2579 (the kernels' compilation fails under a newer Triton),
NVIDIA-NeMo/Megatron-Bridge#3867 (alltoall ran only once the fusion was off).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.site.environment import mask_environment_values
from moe_dispatch.site.gate_diagnosis import first_line, last_line
from moe_dispatch.site.gate_process import OUTPUT_TAIL, end_session, tail

TIMEOUT_S = 180.0
"""Compiling takes seconds; importing torch on a busy shared file system can take a minute."""


class PermuteProbe(BaseModel):
    """Outcome of the probe.

    Fields:
        implementations: whose kernels ran and were right.
        reason: why it failed or was not run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Literal["passed", "failed", "not-run"]
    implementations: tuple[str, ...] = ()
    reason: str = ""
    detail: str = ""

    @property
    def fusion_allowed(self) -> bool:
        """Whether arms may use permute fusion, as far as this probe knows."""
        return self.state != "failed"

    def finding(self) -> Finding | None:
        """A warning when the fusion cannot be used here, else None."""
        if self.state != "failed":
            return None
        return Finding(
            id="permute-fusion-unusable",
            severity=Severity.WARNING,
            message=f"a fused permute of 16 tokens does not run here: {self.reason}",
            why="an arm with the fusion would fail or differ from one without it for a reason that is no dispatcher's",
            advice=("set moe_permute_fusion=false in all arms of a comparison", "repair Triton to use the fusion"),
            source="NVIDIA/TransformerEngine#2286, #2579; NVIDIA-NeMo/Megatron-Bridge#3867",
        )


def probe_permute(python: str = sys.executable, timeout_s: float = TIMEOUT_S) -> PermuteProbe:
    """Compile and run a fused permute in a child process; never raises for a broken one."""
    with tempfile.TemporaryDirectory(prefix="moe-dispatch-permute-") as folder:
        report_path, log_path = Path(folder, "report.json"), Path(folder, "output")
        command = [python, "-u", "-X", "faulthandler", "-m", "moe_dispatch.bench.gate_permute_child", str(report_path)]
        try:
            with open(log_path, "wb") as log:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            return PermuteProbe(state="failed", reason=f"{python} cannot be started: {error.strerror or error}")
        try:
            code: int | None = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_session(child)
        try:
            report = json.loads(report_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            report = {}
        return _probe(report, code, tail(log_path), timeout_s)


def _probe(report: dict[str, object], code: int | None, output: str, timeout_s: float) -> PermuteProbe:
    if report.get("not_run"):
        return PermuteProbe(state="not-run", reason=str(report["not_run"]))
    ran = report.get("ran")
    implementations = tuple(map(str, ran)) if isinstance(ran, list) else ()
    if code == 0 and implementations and not report.get("error"):
        return PermuteProbe(state="passed", implementations=implementations)
    by = f"{report['by']}: " if report.get("by") else ""
    if code is None:
        reason = f"{by}it did not end within {timeout_s:g} s"
    elif code < 0:
        reason = f"{by}its process was ended by signal {-code}"
    else:
        reason = by + (
            first_line(str(report.get("error") or "")) or last_line(output) or f"it ended with status {code}"
        )
    detail = "\n".join(part for part in (output.strip(), str(report.get("traceback") or "").strip()) if part)
    return PermuteProbe(
        state="failed",
        implementations=implementations,
        reason=mask_environment_values(reason),
        detail=mask_environment_values(detail)[-OUTPUT_TAIL:],
    )
