"""Fixtures of the bench tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ranks_find_faulty_backends() -> Iterator[None]:
    """Ranks inherit PYTHONPATH, so that targets of this folder can be imported there."""
    with pytest.MonkeyPatch.context() as patch:
        folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
        yield
