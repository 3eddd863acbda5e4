"""Verdicts over simulated launches with a known truth come out at the rates they should, in a small fixed sample."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/verdict_coverage.py"
FEW = argparse.Namespace(experiments=12, resamples=300)


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdict_coverage", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ratio", "between", "within", "kind"),
    [(1.0, 0.003, 0.01, "tie"), (0.99, 0.003, 0.01, "tie"), (0.9, 0.003, 0.01, "winner"), (0.9, 0.015, 0.03, "winner")],
)
def test_clear_truths_are_always_found(
    coverage: ModuleType, ratio: float, between: float, within: float, kind: str
) -> None:
    assert coverage.row(np.random.default_rng(1), ratio, between, within, FEW)[kind] == 1.0


def test_noise_takes_away_winners_and_adds_no_wrong_one(coverage: ModuleType) -> None:
    shares = coverage.row(np.random.default_rng(2), 0.95, 0.06, 0.05, FEW)
    assert shares["winner"] < 0.5
    assert shares["wrong"] == 0
    assert coverage.row(np.random.default_rng(3), 1.0, 0.06, 0.05, FEW)["winner"] == 0
