"""A third party's package, installed by pip into a folder of its own, is found, proven and proposed: no core edit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fake_backend"

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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("third_party")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    done = subprocess.run(
        [*command, "--no-deps", "--target", str(target), str(PACKAGE)], capture_output=True, text=True, check=False
    )
    if "No module named pip" in done.stderr:
        pytest.skip("this environment holds no pip")
    assert done.returncode == 0, done.stderr
    return target


def seen_from(path: Path) -> dict[str, object]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def test_an_installed_package_is_found_loaded_and_gated(installed: Path) -> None:
    report = seen_from(installed)
    assert report["names"] == ["alltoall", "allgather", "hierarchical", "deepep", "hybridep", "ncclep", "fake"]
    assert report["findings"] == 0
    assert report["torch_free"] is True
    assert report["target"] == "fake"
    gate = report["gate"]
    assert isinstance(gate, dict)
    assert gate["available"] is True
    assert gate["level_reached"] == "imports"
    assert (gate["provider"], gate["version"]) == ("moe-dispatch-fake-backend", "1.2.3")


def test_a_damaged_installation_is_a_reason_not_a_crash(installed: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    subprocess.run(["cp", "-r", str(installed), str(damaged)], check=True)
    (damaged / "fake_backend" / "transport.py").write_text("Pipe = object\n")
    environment = {**os.environ, "PYTHONPATH": str(damaged)}
    code = SEEN.replace('load_target(specs["fake"]).name', "None")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    gate = json.loads(done.stdout)["gate"]
    assert gate["available"] is False
    assert gate["reason_class"] == "missing-feature"
    assert "Transport" in gate["reason"]
    assert gate["fix"] == "pip install moe-dispatch-fake-backend"
