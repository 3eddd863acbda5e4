"""Which file of a shared library a process would load here, without loading it.

Order as of the dynamic linker (ld.so manual): LD_PRELOAD, LD_LIBRARY_PATH, then its cache. Python wheels keep NVIDIA's
libraries in `site-packages/nvidia/*/lib`, where torch finds them by its own run path; they come last here because the
environment overrides them. A size stands beside the real path: the same path may hold another build on another host.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

LIBRARIES = (
    "libcuda.so.1",
    "libnccl.so.2",
    "libnccl-net.so",
    "libnvshmem_host.so.3",
    "libibverbs.so.1",
    "libmlx5.so.1",
    "libfabric.so.1",
)
"""Those that decide how tokens travel: driver, collectives and their network plug-in, RDMA user space."""

_CACHE = "etc/ld.so.cache"


def resolve_libraries(environment: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Library name -> `path (size in bytes)` of the file that would be loaded first; those found nowhere are left out.

    Args:
        environment: of the process at its start.
        root: where the linker's cache is looked for.
    """
    cache = _read(root / _CACHE)
    found = {}
    for name in LIBRARIES:
        for candidate in _candidates(name, environment, cache, root):
            described = _describe(candidate)
            if described is not None:
                found[name] = described
                break
    return found


def _candidates(name: str, environment: Mapping[str, str], cache: bytes, root: Path) -> Iterator[Path]:
    for preloaded in re.split(r"[\s:]+", environment.get("LD_PRELOAD", "")):
        if os.path.basename(preloaded) == name and "/" in preloaded:
            yield Path(preloaded)
    for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Path(folder, name)
    # The cache is a table of offsets over zero-terminated strings; its absolute paths are all that is needed.
    for match in re.finditer(rb"\0(/[^\0]*/" + re.escape(name.encode()) + rb")(?=\0)", cache):
        yield root / os.fsdecode(match[1]).lstrip("/")
    for folder in sys.path:
        if folder.endswith(("site-packages", "dist-packages")):
            yield from sorted(Path(folder, "nvidia").glob(f"*/lib/{name}"))


def _describe(path: Path) -> str | None:
    try:
        real = path.resolve(strict=True)
        return f"{real} ({real.stat().st_size} bytes)"
    except (OSError, RuntimeError):
        return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
