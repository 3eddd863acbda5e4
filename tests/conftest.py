"""Shared between layers: a third party's package, installed by pip into a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():  # kernels run through the interpreter, which Triton decides when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

FAKE_BACKEND = Path(__file__).parent / "fake_backend"


@pytest.fixture(scope="session")
def fake_backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for PYTHONPATH that holds `moe-dispatch-fake-backend` with its metadata."""
    target = tmp_path_factory.mktemp("third_party")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    done = subprocess.run(
        [*command, "--no-deps", "--target", str(target), str(FAKE_BACKEND)], capture_output=True, text=True, check=False
    )
    if "No module named pip" in done.stderr:
        pytest.skip("this environment holds no pip")
    assert done.returncode == 0, done.stderr
    return target
