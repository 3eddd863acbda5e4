"""The package as a whole: import rules that really refuse a violation, quick imports, and an installation that changes
no package that is already there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "numpy", "plotly", "jinja2", "yaml")


def _lint(source: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with this project's contracts over a copy of the package."""
    linter = Path(sys.executable).parent / "lint-imports"
    if not linter.is_file():
        pytest.skip("import-linter is not installed")
    return subprocess.run(
        [linter, "--config", ROOT / "pyproject.toml", "--no-cache"],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "src" / "moe_dispatch", tmp_path / "moe_dispatch", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("core/planted.py", "import moe_dispatch.cli.main", "imports go down only BROKEN"),
        ("workload/planted.py", "def late():\n    import torch", "login-node layers never import torch BROKEN"),
        ("site/planted.py", "from moe_dispatch.dispatch import base", "login-node layers never import torch BROKEN"),
        ("newlayer/__init__.py", "", "imports go down only BROKEN"),
    ],
    ids=["upward", "lazy-torch", "indirect-torch", "unlisted-layer"],
)
def test_planted_violation_is_refused(package_copy: Path, file: str, line: str, broken: str) -> None:
    planted = package_copy / "moe_dispatch" / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line + "\n")
    result = _lint(package_copy)
    assert result.returncode != 0
    assert broken in result.stdout or "newlayer" in result.stdout


def test_package_keeps_its_import_rules(package_copy: Path) -> None:
    result = _lint(package_copy)
    assert result.returncode == 0, result.stdout
    assert "Contracts: 2 kept, 0 broken." in result.stdout
