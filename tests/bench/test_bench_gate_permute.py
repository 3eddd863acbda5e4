"""The probe of the fused permute: what it says where it cannot run, and of a child that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_dispatch.bench.gate_permute import PermuteProbe, probe_permute

torch = pytest.importorskip("torch")


def interpreter(folder: Path, script: str) -> str:
    """An interpreter that does what a broken one does; its last argument is the report."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nfor report in "$@"; do :; done\n{script}\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_not_run() -> None:
    probe = probe_permute()
    assert probe.state == "not-run"
    assert probe.reason in ("needs a GPU", "triton is not installed")
    assert probe.fusion_allowed
    assert probe.finding() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_runs() -> None:
    probe = probe_permute()
    assert (probe.state, "moe_dispatch" in probe.implementations) == ("passed", True), probe


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_triton_that_cannot_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles its launcher with $CC; an empty cache makes it do so."""
    monkeypatch.setenv("CC", "/bin/false")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    failed(probe_permute(), "/bin/false")


def failed(probe: PermuteProbe, part: str) -> None:
    assert (probe.state, probe.fusion_allowed) == ("failed", False)
    assert part in probe.reason
    finding = probe.finding()
    assert finding is not None
    assert part in finding.message
    assert "moe_permute_fusion=false in all arms" in finding.advice[0]


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("kill -SEGV $$", "signal 11"),
        ("echo 'ptxas: fatal'; exit 4", "ptxas: fatal"),
        ("exit 0", "status 0"),
    ],
)
def test_a_child_that_dies(tmp_path: Path, script: str, part: str) -> None:
    failed(probe_permute(interpreter(tmp_path, script)), part)


def test_a_compile_error_of_one_implementation(tmp_path: Path) -> None:
    report = {"ran": [], "not_run": "", "by": "transformer_engine", "error": "CompilationError: at 12:4"}
    script = f"echo '{json.dumps(report)}' > \"$report\""
    failed(probe_permute(interpreter(tmp_path, script)), "transformer_engine: CompilationError: at 12:4")


def test_a_child_that_hangs(tmp_path: Path) -> None:
    failed(probe_permute(interpreter(tmp_path, "sleep 600"), timeout_s=0.5), "did not end within 0.5 s")


def test_an_interpreter_that_is_none() -> None:
    failed(probe_permute("/nowhere/python"), "/nowhere/python cannot be started")
