"""`moe-dispatch hardware`: what this machine is, entries, and names that are none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(path)} if path else None
    command = [sys.executable, "-m", "moe_dispatch.cli.main", "hardware", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


def test_this_machine_for_people_and_machines() -> None:
    shown, told = run("--here"), run("--here", "--json")
    site = json.loads(told.stdout)
    assert (shown.returncode, told.returncode, shown.stderr) == (0, 0, "")
    assert shown.stdout.startswith(f"{site['name']} (this machine)")
    assert all(nic["name"] in shown.stdout for nic in site["nics"])
    assert len(site["gpus"]) == site["gpus_per_node"]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine's own driver answers before the made-up tool")
def test_a_tool_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho broken driver; exit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    shown = run("--here", path=tmp_path)
    assert shown.returncode == 0
    assert "nvidia-smi is there but gave no GPU" in " ".join(shown.stdout.split())


def test_an_entry_with_its_source() -> None:
    shown = run("gb300-nvl72")
    assert shown.returncode == 0
    assert "fp8_tflops" in shown.stdout
    assert "NVIDIA GB300 NVL72 specifications" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("h100-pcie",), "'pcie' is not part of h100"),
        (("gb20-nvl72",), "did you mean 'gb200-nvl72'?"),
        (("--here", "h100"), "--here shows this machine"),
    ],
)
def test_bad_input_is_one_message(arguments: tuple[str, ...], message: str) -> None:
    failed = run(*arguments)
    assert failed.returncode == 2
    assert message in failed.stderr
    assert "Traceback" not in failed.stderr
