"""Versions of what a measurement depends on, from package metadata and file names: nothing is imported."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import moe_dispatch
from moe_dispatch.site.libraries import resolve_libraries

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

LIBRARIES = {"nccl": "libnccl.so.2", "nvshmem": "libnvshmem_host.so.3"}
"""Component -> library whose file name tells its version (`libnccl.so.2.27.5`): containers hold it without a wheel."""

_DRIVER = Path("/sys/module/nvidia/version")


def stack_fingerprint(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> dict[str, str | None]:
    """Versions by component; None means absent (or, for the driver, that none is loaded).

    The torch version carries its local part (`2.11.0+cu130`), so builds for another CUDA differ. A wheel's version goes
    before that of a library of the system, as torch's own run path does.

    Args:
        environment: where the linker is told to look for libraries; default `os.environ`.
        root: where its cache is looked for.
    """
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "moe_dispatch": moe_dispatch.__version__,
        "kernel": platform.release(),
        "driver": _read(_DRIVER),
    }
    found.update({name: _first_version(names) for name, names in DISTRIBUTIONS.items()})
    without_wheel = [name for name in LIBRARIES if found[name] is None]
    if without_wheel:
        paths = resolve_libraries(os.environ if environment is None else environment, root)
        found.update({name: _version_of_file(paths.get(LIBRARIES[name], "")) for name in without_wheel})
    return found


def _version_of_file(path: str) -> str | None:
    match = re.search(r"\.so\.(\d+(?:\.\d+){2})\b", path)
    return match[1] if match else None


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
