"""Runs in the child process of a gate: who provides a module, and which libraries this process has loaded.

Loaded by path beside `gate_child.py`, with any interpreter, so it needs nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import sys
from importlib import metadata
from typing import Any

_MAX_BINARIES = 60
_COMMIT = re.compile(r"\+(?:[\w.]*?\.)?g?([0-9a-f]{7,40})(?:\.|$)")
_BUILT_FOR = re.compile(r"torch *\(?== *([\w.+]+)")


def provider(top: str) -> dict[str, Any]:
    """Which distribution provides a top-level module, where it is found, and what may shadow it.

    Returns:
        `provider`, `version`, `commit`, `requires_torch` of the distribution that owns the file, `distributions` that
        claim the module, `namespace` (a folder without `__init__`), `locations`, and `owned` (the file that would be
        imported belongs to one of the distributions; None when they do not list files).
    """
    facts: dict[str, Any] = {"provider": None, "version": None, "commit": None, "requires_torch": None}
    spec = importlib.util.find_spec(top)
    locations = [] if spec is None else [os.path.realpath(path) for path in spec.submodule_search_locations or ()]
    origin = None if spec is None or spec.origin is None else os.path.realpath(spec.origin)
    facts["locations"] = [origin] if origin else locations
    facts["namespace"] = spec is not None and spec.origin is None
    names = sorted(set(metadata.packages_distributions().get(top) or ()))
    owners = [name for name in names if _owns(name, origin, locations)]
    facts["distributions"] = [f"{name} {metadata.version(name)}" for name in names]
    facts["owners"] = [f"{name} {metadata.version(name)}" for name in owners]
    if names:
        _describe(facts, owners[0] if owners else names[0])
    return facts


def _describe(facts: dict[str, Any], name: str) -> None:
    found = metadata.distribution(name)
    facts.update(provider=name, version=found.version, commit=_commit(found))
    required = [match[1] for line in found.requires or () if (match := _BUILT_FOR.match(line))]
    facts["requires_torch"] = required[0] if required else None


def _commit(found: metadata.Distribution) -> str | None:
    try:
        recorded = json.loads(found.read_text("direct_url.json") or "{}")
        commit = recorded.get("vcs_info", {}).get("commit_id")
    except (ValueError, AttributeError):
        commit = None
    match = _COMMIT.search(found.version)
    return str(commit) if commit else match[1] if match else None


def _owns(name: str, origin: str | None, locations: list[str]) -> bool:
    """Whether a distribution installed the file that would be imported, or something in the folders of a namespace."""
    found = metadata.distribution(name)
    files = found.files
    if files is None:
        root = os.path.realpath(str(found.locate_file("")))
        return all(path.startswith(root + os.sep) for path in ([origin] if origin else locations))
    if origin:
        alike = (file for file in files if file.name == os.path.basename(origin))
        return any(os.path.realpath(str(found.locate_file(file))) == origin for file in alike) or _editable(
            found, origin
        )
    inside = {str(found.locate_file(file.parts[0])) for file in files if len(file.parts) > 1}
    return any(os.path.realpath(path) in locations for path in inside)


def _editable(found: metadata.Distribution, origin: str) -> bool:
    """An editable install lists no module files; its source folder is in direct_url.json (PEP 610)."""
    try:
        url = str(json.loads(found.read_text("direct_url.json") or "{}").get("url", ""))
    except (ValueError, AttributeError):
        return False
    return url.startswith("file://") and origin.startswith(os.path.realpath(url[len("file://") :]) + os.sep)


def binaries(modules: list[str]) -> list[str]:
    """Compiled files of modules, found without importing them."""
    found: list[str] = []
    for module in modules:
        top, *rest = module.split(".")
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            continue
        if spec.origin is not None and spec.submodule_search_locations is None:
            found += [spec.origin] if ".so" in os.path.basename(spec.origin) else []
        for folder in spec.submodule_search_locations or ():
            found += _shared_objects(os.path.join(folder, *rest))
    return sorted({os.path.realpath(path) for path in found})[:_MAX_BINARIES]


def _shared_objects(folder: str) -> list[str]:
    return [
        os.path.join(root, name)
        for root, _, names in os.walk(folder)
        for name in names
        if name.endswith(".so") or ".so." in name
    ]


def loaded() -> dict[str, Any]:
    """Libraries mapped into this process and their versions, as they report them.

    Returns:
        `nccl_copies` and `nvshmem_copies` (real paths), `nccl_version` (of the copy that is loaded, else of its
        wheel), `nvshmem_version`, `torch_cuda`.
    """
    nccl, nvshmem = mapped("libnccl.so"), mapped("libnvshmem_host.so")
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return {
        "nccl_copies": nccl,
        "nccl_version": _nccl_version(nccl[0]) if nccl else _nccl_wheel(),
        "nvshmem_copies": nvshmem,
        "nvshmem_version": _nvshmem_version(nvshmem[0]) if nvshmem else None,
        "torch_cuda": cuda if isinstance(cuda, str) else None,
    }


def mapped(name: str) -> list[str]:
    """Real paths of the mapped files whose name begins so."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/" + name in line}
    except OSError:
        return []
    return sorted({os.path.realpath(path) for path in paths})


def _nccl_version(path: str) -> str | None:
    """NCCL's own number: major * 10000 + minor * 100 + patch since 2.9, thousands before (nccl.h)."""
    code = ctypes.c_int()
    if not _call(path, "ncclGetVersion", ctypes.byref(code)):
        return None
    unit = 10000 if code.value >= 10000 else 1000
    return f"{code.value // unit}.{code.value % unit // 100}.{code.value % 100}"


def _nccl_wheel() -> str | None:
    """Version of NCCL's wheel, where nothing has loaded NCCL yet and no other copy stands before it."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and os.path.exists(os.path.join(folder, "libnccl.so.2")) for folder in folders):
        return None
    wheels = (each for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12") for each in metadata.distributions(name=name))
    found = next(wheels, None)
    return found.version if found else None


def _nvshmem_version(path: str) -> str | None:
    parts = [ctypes.c_int() for _ in range(3)]
    if not _call(path, "nvshmemx_vendor_get_version_info", *map(ctypes.byref, parts)):
        return None
    return ".".join(str(part.value) for part in parts)


def _call(path: str, function: str, *arguments: Any) -> bool:
    try:
        # NOLOAD: only a copy that is in this process already is asked
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return int(getattr(library, function)(*arguments)) == 0
    except (OSError, AttributeError):
        return False


def offered(apis: list[list[str]]) -> list[str]:
    """Which `[module, symbol]` pairs exist among the modules that are imported already."""
    return [
        f"{module}.{symbol}"
        for module, symbol in apis
        if module in sys.modules and getattr(sys.modules[module], symbol, None) is not None
    ]
