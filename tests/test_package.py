"""The package as a whole: import rules that really refuse a violation, quick imports, and an installation that changes
no package that is already there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "numpy", "plotly", "jinja2", "yaml", "pydantic", "typer")
DATA = (".py", ".yaml", ".json", ".j2")


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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    (built,) = folder.glob("*.whl")
    return built


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def _files_of(name: str) -> dict[str, str]:
    """Path -> recorded hash of every file of an installed distribution of this environment."""
    return {str(file): str(file.hash) for file in metadata.distribution(name).files or ()}


def _link_installed(names: set[str], target: Path) -> None:
    """Make distributions of this environment visible in another one, as a container's preinstalled packages are."""
    for name in names:
        for file in metadata.distribution(name).files or ():
            top = file.parts[0]
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists() and not (target / top).exists():
                (target / top).symlink_to(source)


def _with_dependencies(*roots: str) -> set[str]:
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # only wanted on another platform or by an extra
        found.add(name)
        waiting += [re.split(r"[ ;<>=!~\[(]", entry, maxsplit=1)[0] for entry in requires if "extra ==" not in entry]
    return found


def test_wheel_beside_torch_and_numpy_changes_neither(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    (site,) = venv.glob("lib/python*/site-packages")
    _link_installed(_with_dependencies("torch", "numpy"), site)
    listing = ("--python", str(python), "list", "--format", "json")
    before = {entry["name"]: entry["version"] for entry in json.loads(_pip(*listing).stdout)}
    assert {"torch", "numpy"} <= before.keys()
    assert "moe-dispatch" not in before
    hashes = {name: _files_of(name) for name in ("torch", "numpy")}
    try:
        _pip("--python", str(python), "install", "-q", f"{wheel}[torch,report]")
    except subprocess.CalledProcessError as error:
        if "No matching distribution" in error.stderr or "connection" in error.stderr.lower():
            pytest.skip(f"the package index is out of reach: {error.stderr.splitlines()[-1]}")
        raise
    after = {entry["name"]: entry["version"] for entry in json.loads(_pip(*listing).stdout)}
    assert {name: after[name] for name in before} == before
    assert "moe-dispatch" in after
    assert hashes == {name: _files_of(name) for name in ("torch", "numpy")}
    assert all((site / name).is_symlink() for name in ("torch", "numpy"))
    shown = subprocess.run([venv / "bin" / "moe-dispatch", "models", "qwen3-30b-a3b", "--json"], capture_output=True)
    assert json.loads(shown.stdout)["num_experts"] == 128, shown.stderr


def test_wheel_carries_its_data_and_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.suffix in DATA}
    assert sources <= set(names)
    assert "moe_dispatch/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_importing_the_package_is_free() -> None:
    script = f"import sys, moe_dispatch; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
