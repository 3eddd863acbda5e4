"""Versions of what a measurement depends on, read from package metadata: nothing is imported, torch least of all."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import moe_dispatch

DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "numpy": ("numpy",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "nvshmem": ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"),
    "triton": ("triton",),
    "deep_ep": ("deep_ep", "sgl-deep-ep"),
    "nccl_extensions": ("nccl-extensions",),
    "transformer_engine": ("transformer_engine", "transformer_engine_torch", "transformer_engine_cu12"),
    "megatron_core": ("megatron-core",),
    "megatron_bridge": ("megatron-bridge",),
}
"""Key of the fingerprint -> distributions that may provide it, first found wins."""

_DRIVER = Path("/sys/module/nvidia/version")


def stack_fingerprint() -> dict[str, str | None]:
    """Versions by component; None means absent (or, for the driver, that none is loaded).

    The torch version carries its local part (`2.11.0+cu130`), so builds for another CUDA differ.
    """
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "moe_dispatch": moe_dispatch.__version__,
        "kernel": platform.release(),
        "driver": _read(_DRIVER),
    }
    found.update({name: _first_version(names) for name, names in DISTRIBUTIONS.items()})
    return found


def _first_version(distributions: Iterable[str]) -> str | None:
    return next((version for name in distributions if (version := _version(name)) is not None), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
