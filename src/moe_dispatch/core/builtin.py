"""The backends this package ships, as lazily read BackendSpec objects: the targets of our own entry points."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from moe_dispatch.core.backend import BackendSpec

_NAMES = ("alltoall", "allgather", "hierarchical", "deepep", "hybridep", "ncclep")


@cache
def load_builtin(name: str) -> BackendSpec:
    """Read `core/backends/<name>.yaml`."""
    text = resources.files("moe_dispatch.core").joinpath("backends", f"{name}.yaml").read_text(encoding="utf-8")
    return BackendSpec.model_validate(yaml.safe_load(text))


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return load_builtin(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
