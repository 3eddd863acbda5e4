"""The backends this package ships, as lazily read BackendSpec objects: the targets of our own entry points."""

from __future__ import annotations

from functools import cache
from typing import Any

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.data import read_yaml

_NAMES = ("alltoall", "allgather", "hierarchical", "deepep", "hybridep", "ncclep")


@cache
def load_builtin(name: str) -> BackendSpec:
    """Read `core/backends/<name>.yaml`."""
    return BackendSpec.model_validate(read_yaml("moe_dispatch.core", "backends", f"{name}.yaml"))


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return load_builtin(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
