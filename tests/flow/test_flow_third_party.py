"""A third party's backend goes from gate to verdict like any other, installed beside a package that is not edited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKLOAD = """
model: {name: tiny, hidden: 64, num_layers: 2, num_moe_layers: 2, num_experts: 8, topk: 2, moe_ffn_hidden: 32}
layout: {ep: 2}
seq_length: 64
"""


@pytest.mark.gloo
def test_a_third_party_backend_goes_from_gate_to_verdict(fake_backend: Path, tmp_path: Path) -> None:
    workload = tmp_path / "tiny.yaml"
    workload.write_text(WORKLOAD)
    command = [sys.executable, "-c", "from moe_dispatch.cli.main import main; main()", "select", str(workload)]
    command += ["--dispatcher", "fake", "--launches", "1", "--budget", "5", "--skew", "none", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(fake_backend)},
        timeout=280,
    )
    report = json.loads(done.stdout)
    candidate = next(each for each in report["candidates"] if each["dispatcher"] == "fake")
    assert candidate["included"] is True
    gate = next(each for each in report["gates"] if each["backend"] == "fake")
    assert gate["available"] is True
    ranked = {each["choice"]["dispatcher"]: each for each in report["verdict"]["evidence"]}
    assert set(ranked) == {"alltoall", "fake"}
    assert ranked["fake"]["launches"] == 1
    assert ranked["fake"]["ratio"] is not None
    # one launch proves nothing: a winner needs five
    assert report["verdict"]["kind"] in ("inconclusive", "tie")
