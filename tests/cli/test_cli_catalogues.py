"""Commands that measure nothing: plans for declared sites, configuration, catalogues; people's and machines' output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main"]


def run(*arguments: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120, cwd=cwd)
    assert done.returncode == code, done.stderr
    assert done.stderr == ""
    return done.stdout


def load(*arguments: str, cwd: Path, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", cwd=cwd, code=code))


def test_declared_site_gives_a_plan_and_runs_nothing(tmp_path: Path) -> None:
    plan = load("select", "qwen3-30b-a3b", "--site", "h100", "--nodes", "2", "--ep", "16", cwd=tmp_path)
    assert plan["verdict"] is None
    assert plan["site"]["declared"] is True
    assert plan["candidates"][0]["choice"]["dispatcher"] == "alltoall"
    assert "deepep" in plan["configurations"]
    # 16 ranks of 8 experts in two domains; half of all copies leave the domain, and a token crosses at most once.
    rows = plan["expected_rows_per_rank"]
    assert rows["rows_copies"] == 4096 * 8
    assert rows["rows_copies_off_domain"] == pytest.approx(rows["rows_copies"] / 2)
    assert rows["rows_domain_off_domain"] < 4096
    assert list(tmp_path.iterdir()) == []


def test_plan_for_people_names_every_configuration(tmp_path: Path) -> None:
    shown = run("select", "qwen3-30b-a3b", "--site", "h100", "--nodes", "2", "--ep", "16", cwd=tmp_path)
    assert "a verdict never transfers" in shown
    assert "deepep: --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep" in shown


def test_emit_writes_the_knob_under_the_name_of_the_release(tmp_path: Path) -> None:
    unified = load("emit", "deepep", "--knob", "num_sms=24", cwd=tmp_path)
    legacy = load("emit", "deepep", "--knob", "num_sms=24", "--core-version", "0.17", cwd=tmp_path)
    assert unified["megatron_lm_args"][-2:] == ["--moe-flex-dispatcher-num-sms", "24"]
    assert legacy["megatron_lm_args"][-2:] == ["--moe-deepep-num-sms", "24"]
    assert unified["benchmark_only_args"] == ["--moe-router-force-load-balancing"]


def test_emit_of_what_megatron_does_not_ship_says_so(tmp_path: Path) -> None:
    emitted = load("emit", "hierarchical", cwd=tmp_path, code=1)
    assert emitted["emitted"] is None
    assert emitted["megatron_lm_args"] == []
    assert "ships no dispatcher 'hierarchical'" in emitted["notes"][0]


def test_hardware_lists_and_shows(tmp_path: Path) -> None:
    entries = {entry["name"]: entry for entry in load("hardware", cwd=tmp_path)}
    assert entries["gb200"]["nvlink_domain"] == 72
    assert load("hardware", "NVIDIA-H100", cwd=tmp_path) == entries["h100"]
    assert load("hardware", "--here", cwd=tmp_path)["declared"] is False


def test_backends_lists_what_is_registered_and_gates_on_request(tmp_path: Path) -> None:
    listed = {entry["name"]: entry for entry in load("backends", cwd=tmp_path)}
    assert {"alltoall", "allgather", "hierarchical", "deepep", "hybridep", "ncclep"} <= listed.keys()
    assert all(entry["gate"] is None for entry in listed.values())
    gated = {entry["name"]: entry["gate"] for entry in load("backends", "--gate", cwd=tmp_path)}
    assert gated["alltoall"]["available"] is True
    assert all(gate["available"] or gate["reason"] for gate in gated.values())


def test_one_model_in_full(tmp_path: Path) -> None:
    model = load("models", "qwen3-30b-a3b", cwd=tmp_path)
    # Forward: 2 FLOPs x 3 products x top-k x expert width x hidden.
    assert model["moe_layer_forward_flops_per_token"] == 2 * 3 * 8 * 768 * 2048
    assert "128" in run("models", "qwen3-30b-a3b", cwd=tmp_path)
