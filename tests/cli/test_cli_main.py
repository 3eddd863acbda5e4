"""The command line itself: help that loads nothing heavy, one message for expected trouble, exit codes, JSON errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moe_dispatch import __version__
from moe_dispatch.cli.main import COMMANDS

COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main"]
HEAVY = ("torch", "numpy", "rich", "plotly", "jinja2", "yaml", "moe_dispatch.flow", "moe_dispatch.bench")


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=cwd, timeout=120
    )


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["select", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom moe_dispatch.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


def test_version() -> None:
    assert run("--version").stdout.strip() == f"moe-dispatch {__version__}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["selct"], "select"),
        (["select", "qwen3-30b-a3b", "--epp", "4"], "--epp"),
        (["select", "qwen3-30b-a3b", "--ep", "four"], "--ep"),
        (["select"], "WORKLOAD"),
    ],
    ids=["command-typo", "unknown-option", "not-a-number", "no-workload"],
)
def test_parser_errors_exit_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_parser_error_as_json() -> None:
    done = run("models", "--bogus", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "UsageError"
    assert error["exit_code"] == 2
    assert "--bogus" in error["message"]


def test_expected_error_is_one_message_with_its_fix() -> None:
    done = run("models", "qwen3-30b-a3")
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first == "moe-dispatch: unknown model 'qwen3-30b-a3'"
    assert second.startswith("  fix: did you mean qwen3-30b-a3b")


def test_expected_error_as_json() -> None:
    done = run("models", "qwen3-30b-a3", "--json")
    assert done.returncode == 2
    assert done.stderr == ""
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "WorkloadError"
    assert "qwen3-30b-a3b" in error["fix"]


def test_models_json_has_every_entry_with_its_source() -> None:
    entries = json.loads(run("models", "--json").stdout)
    assert len(entries) >= 19
    assert all(entry["source"] for entry in entries)
    shapes = {entry["name"]: entry["shape"] for entry in entries}
    qwen = shapes["qwen3-30b-a3b"]
    assert (qwen["num_experts"], qwen["topk"], qwen["hidden"], qwen["moe_ffn_hidden"]) == (128, 8, 2048, 768)


def test_models_table_names_are_whole() -> None:
    done = run("models")
    names = [entry["name"] for entry in json.loads(run("models", "--json").stdout)]
    assert all(any(line.split()[:1] == [name] for line in done.stdout.splitlines()) for name in names)
