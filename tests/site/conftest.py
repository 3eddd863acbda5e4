"""Fixtures of the gate's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_modules import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
