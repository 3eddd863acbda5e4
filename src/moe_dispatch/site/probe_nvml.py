"""Child process: asks NVML (nvidia-ml-py) about every GPU and prints one JSON document.

A call into the driver can hang or crash, so it runs here and not in the program that wants to know; this file imports
nothing of the package. Each value is asked for by itself: one that the driver does not know is left out.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

# Constants of the NVML API, by value: releases of nvidia-ml-py spell some of them as tuples.
READ, NVLINK = 0, 2
STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
MOST_LINKS = 36
CORES_PER_SM = {"8.0": 64}
DEFAULT_CORES_PER_SM = 128
HEALTH_BITS = {0: "degraded bandwidth", 2: "route recovery in progress", 4: "unhealthy route", 6: "access time-out"}
CONFIGURATION_SHIFT = 8
CONFIGURATIONS = {2: "wrong system GUID", 3: "wrong chassis", 4: "no partition", 5: "too few NVLinks"}


def main() -> None:
    """Print what NVML tells; nothing on a machine without it."""
    import pynvml as nvml

    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    cuda = ask(nvml.nvmlSystemGetCudaDriverVersion)
    document = {
        "driver": text(ask(nvml.nvmlSystemGetDriverVersion)),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "gpus": [describe(nvml, index, handle, handles) for index, handle in enumerate(handles)],
    }
    json.dump(document, sys.stdout)


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """A value, None when this driver or release does not give it."""
    try:
        return function(*arguments)
    except Exception:
        return None


def text(value: Any) -> Any:
    """Old releases return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def describe(nvml: Any, index: int, handle: Any, handles: list[Any]) -> dict[str, Any]:
    """One GPU as keyword arguments of `Gpu`."""
    pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    version = f"{capability[0]}.{capability[1]}" if capability else None
    cores = ask(nvml.nvmlDeviceGetNumGpuCores, handle)
    mig = ask(nvml.nvmlDeviceGetMigMode, handle)
    lanes = active_links(nvml, handle)
    return {
        "index": index,
        "name": text(ask(nvml.nvmlDeviceGetName, handle)) or "",
        "uuid": text(ask(nvml.nvmlDeviceGetUUID, handle)) or "",
        "pci": text(pci.busId) if pci is not None else "",
        "memory_bytes": memory.total if memory is not None else None,
        "capability": version,
        "sms": cores // CORES_PER_SM.get(version or "", DEFAULT_CORES_PER_SM) if cores else None,
        "mig": bool(mig and mig[0]),
        "nvlinks": lanes,
        "links": [link(nvml, handle, other, lanes) for other in handles],
        "p2p": [handle is other or ask(nvml.nvmlDeviceGetP2PStatus, handle, other, READ) == 0 for other in handles],
        "fabric": fabric(nvml, handle),
    }


def active_links(nvml: Any, handle: Any) -> int | None:
    """NVLink lanes that are up; None where the driver knows none."""
    states = [ask(nvml.nvmlDeviceGetNvLinkState, handle, lane) for lane in range(MOST_LINKS)]
    known = [state for state in states if state is not None]
    return sum(state == 1 for state in known) if known else None


def link(nvml: Any, handle: Any, other: Any, lanes: int | None) -> str:
    """How one GPU reaches another, in the letters of `nvidia-smi topo -m`."""
    if handle is other:
        return "X"
    if ask(nvml.nvmlDeviceGetP2PStatus, handle, other, NVLINK) == 0:
        peer = ask(nvml.nvmlDeviceGetPciInfo, other)
        remotes = [ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, lane) for lane in range(MOST_LINKS)]
        direct = sum(remote is not None and peer is not None and remote.busId == peer.busId for remote in remotes)
        return f"NV{direct or lanes or 0}"  # behind a switch no remote end is a GPU, and every lane leads to all
    return ANCESTORS.get(ask(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, other), "SYS")


def fabric(nvml: Any, handle: Any) -> dict[str, Any] | None:
    """Registration with the NVLink fabric as keyword arguments of `GpuFabric`; None before driver 535."""
    for structure, function in (
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    ):
        try:
            info = getattr(nvml, structure)()
            getattr(nvml, function)(handle, ctypes.byref(info))
        except Exception:
            continue
        raw = ctypes.string_at(ctypes.addressof(info) + type(info).clusterUuid.offset, 16).hex()
        return {
            "state": STATES.get(info.state, "unknown"),
            "status": "success" if info.status == 0 else text(ask(nvml.nvmlErrorString, info.status)) or "failure",
            "cluster": "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:])),
            "clique": info.cliqueId,
            "problems": problems(getattr(info, "healthMask", 0)),
        }
    return None


def problems(mask: int) -> list[str]:
    """What a health mask complains of: two bits for each kind, 1 means yes; then the kind of misconfiguration."""
    found = [name for shift, name in HEALTH_BITS.items() if mask >> shift & 3 == 1]
    wrong = CONFIGURATIONS.get(mask >> CONFIGURATION_SHIFT & 15)
    return [*found, wrong] if wrong else found


if __name__ == "__main__":
    main()
