"""Probing this machine without torch: /proc, /sys, cgroup limits, and nvidia-smi under a time limit."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from moe_dispatch.site.hardware import hardware_of_device
from moe_dispatch.site.model import Fabric, Site

_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_SMI_TIMEOUT_S = 15.0
_KILLED_S = 1.0


@dataclass(frozen=True)
class GpuLine:
    """One GPU as nvidia-smi prints it; memory in bytes."""

    name: str
    memory_bytes: int | None
    driver: str | None


def probe(nodes: int = 1, root: Path = Path("/")) -> Site:
    """What this machine is. Never raises: what cannot be seen stays unknown.

    Args:
        nodes: nodes of the job, which one of them cannot see.
        root: where /proc and /sys are looked for.
    """
    host = socket.gethostname()
    gpus = visible(parse_smi(_run_smi()), os.environ.get("CUDA_VISIBLE_DEVICES"))
    first = gpus[0] if gpus else None
    hardware = hardware_of_device(first.name) if first else None
    alike = first is not None and all(gpu.name == first.name for gpu in gpus)
    return Site(
        name=host,
        declared=False,
        device="cuda" if gpus else "cpu",
        gpu=hardware.name if hardware and alike else None,
        gpu_name=first.name if first else "",
        gpus_per_node=len(gpus),
        gpu_memory_bytes=first.memory_bytes if first else None,
        nodes=nodes,
        hosts=(host,),
        nvlink_domain=hardware.nvlink_domain if hardware and alike and len(gpus) > 1 else None,
        fabric=fabric(root),
        cpu_model=cpu_model(root),
        cores=cores(root),
        memory_bytes=memory_bytes(root),
        driver=first.driver if first else None,
    )


def parse_smi(text: str) -> list[GpuLine]:
    """The GPUs in nvidia-smi's comma separated lines (name, MiB, driver); other lines are skipped."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0]:
            memory = int(fields[1]) * 2**20 if fields[1].isdigit() else None
            found.append(GpuLine(fields[0], memory, fields[2] or None))
    return found


def visible(gpus: list[GpuLine], selection: str | None) -> list[GpuLine]:
    """Those that CUDA_VISIBLE_DEVICES leaves: indices up to the first invalid one; other identifiers by count."""
    if selection is None:
        return gpus
    kept: list[GpuLine] = []
    for part in (part.strip() for part in selection.split(",")):
        if part.isdigit() and int(part) < len(gpus):
            kept.append(gpus[int(part)])
        elif part.startswith(("GPU-", "MIG-")) and len(kept) < len(gpus):
            kept.append(gpus[len(kept)])
        else:
            break
    return kept


def fabric(root: Path) -> Fabric:
    """The best network device between nodes: EFA, InfiniBand, RoCE, else plain Ethernet, else none."""
    kinds: set[Fabric] = set()
    for device in _children(root / "sys/class/infiniband"):
        driver = os.path.basename(os.path.realpath(device / "device/driver"))
        layers = {_read(port / "link_layer") for port in _children(device / "ports")}
        if driver == "efa" or device.name.startswith(("efa", "rdmap")):
            kinds.add("efa")
        elif "InfiniBand" in layers:
            kinds.add("infiniband")
        elif "Ethernet" in layers:
            kinds.add("roce")
    for kind in ("efa", "infiniband", "roce"):
        if kind in kinds:
            return kind
    interfaces = [path.name for path in _children(root / "sys/class/net") if path.name != "lo"]
    return "ethernet" if interfaces else "none"


def cpu_model(root: Path) -> str:
    """The processor's name, empty when /proc does not tell (as on many Arm systems)."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return ""


def cores(root: Path) -> int | None:
    """CPU cores this process may use: its affinity mask, cut by a cgroup quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _read(root / "sys/fs/cgroup/cpu.max").split()
    if allowed and len(quota) == 2 and all(part.isdecimal() for part in quota) and int(quota[1]):
        return max(1, min(allowed, int(quota[0]) // int(quota[1])))
    return allowed


def memory_bytes(root: Path) -> int | None:
    """Memory this process may use: the host's, cut by a cgroup limit."""
    total = None
    for line in _read(root / "proc/meminfo").splitlines():
        fields = line.split()
        if len(fields) > 1 and fields[0] == "MemTotal:" and fields[1].isdecimal():
            total = int(fields[1]) * 1024
    limit = _read(root / "sys/fs/cgroup/memory.max")
    return min(total, int(limit)) if total and limit.isdecimal() else total


def _run_smi() -> str:
    """What nvidia-smi prints; empty if it is absent, fails or hangs (with a broken driver not even a kill ends it)."""
    try:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(_SMI, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
            try:
                returncode = process.wait(_SMI_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return ""
            finally:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S)
            output.seek(0)
            return output.read().decode("utf-8", "replace") if returncode == 0 else ""
    except OSError:
        return ""


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
