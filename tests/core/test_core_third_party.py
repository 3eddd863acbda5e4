"""A third party's package, installed by pip into a folder of its own, is found, proven and proposed: no core edit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SEEN = """
import json, sys
from moe_dispatch.core.registry import load_backends_with_findings, load_target
from moe_dispatch.site.gate import gate
specs, findings = load_backends_with_findings()
torch_free = "torch" not in sys.modules
result = gate(specs["fake"])
print(json.dumps({
    "names": list(specs), "findings": len(findings), "torch_free": torch_free,
    "target": load_target(specs["fake"]).name,
    "gate": result.model_dump(),
}))
"""


def seen_from(path: Path, code: str = SEEN) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_an_installed_package_is_found_loaded_and_gated(fake_backend: Path) -> None:
    report = seen_from(fake_backend)
    assert report["names"] == ["alltoall", "allgather", "hierarchical", "deepep", "hybridep", "ncclep", "fake"]
    assert report["findings"] == 0
    assert report["torch_free"] is True
    assert report["target"] == "fake"
    gate = report["gate"]
    assert gate["available"] is True
    assert gate["level_reached"] == "imports"
    assert (gate["provider"], gate["version"]) == ("moe-dispatch-fake-backend", "1.2.3")


def test_a_damaged_installation_is_a_reason_not_a_crash(fake_backend: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(fake_backend, damaged)
    (damaged / "fake_backend" / "transport.py").write_text("Pipe = object\n")
    shutil.rmtree(damaged / "fake_backend" / "__pycache__", ignore_errors=True)
    gate = seen_from(damaged, SEEN.replace('load_target(specs["fake"]).name', "None"))["gate"]
    assert gate["available"] is False
    assert gate["reason_class"] == "missing-feature"
    assert "Transport" in gate["reason"]
    assert gate["fix"] == "pip install moe-dispatch-fake-backend"
