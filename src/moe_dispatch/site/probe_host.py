"""The host around the GPUs: processor, memory, IMEX channels, kernel modules, compiler, container and scheduler."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from moe_dispatch.site.devices import Container, Scheduler
from moe_dispatch.site.probe_run import children, number, read

_DIRECT_MODULES = frozenset({"nvidia_peermem", "nv_peer_mem", "gdrdrv"})
_OPEN_MODULE = "nvidia-open"
_CGROUP_RUNTIMES = {"docker": "docker", "libpod": "podman", "containerd": "containerd"}
_PYXIS_IMAGE = "pyxis_container_image"


def cpu_model(root: Path) -> str:
    """The processor's name, empty when /proc does not tell (as on many Arm systems)."""
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return ""


def cores(root: Path) -> int | None:
    """CPU cores this process may use: its affinity mask, cut by a cgroup quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = read(root / "sys/fs/cgroup/cpu.max").split()
    if allowed and len(quota) == 2 and all(part.isdecimal() for part in quota) and int(quota[1]):
        return max(1, min(allowed, int(quota[0]) // int(quota[1])))
    return allowed


def memory_bytes(root: Path) -> int | None:
    """Memory this process may use: the host's, cut by a cgroup limit."""
    total = None
    for line in read(root / "proc/meminfo").splitlines():
        fields = line.split()
        if len(fields) > 1 and fields[0] == "MemTotal:" and fields[1].isdecimal():
            total = int(fields[1]) * 1024
    limit = read(root / "sys/fs/cgroup/memory.max")
    return min(total, int(limit)) if total and limit.isdecimal() else total


def imex_channels(root: Path) -> tuple[str, ...]:
    """Device files through which NVLink memory is shared between nodes."""
    folder = root / "dev/nvidia-caps-imex-channels"
    return tuple(f"/dev/{folder.name}/{entry.name}" for entry in children(folder) if entry.name.startswith("channel"))


def kernel_modules(root: Path) -> tuple[str, ...]:
    """Loaded modules that give adapters GPU memory, and `nvidia-open` for the driver flavour that needs none."""
    loaded = {line.split(" ", 1)[0] for line in read(root / "proc/modules").splitlines()}
    found = sorted(_DIRECT_MODULES & loaded)
    if "Open Kernel Module" in read(root / "proc/driver/nvidia/version"):
        found.append(_OPEN_MODULE)
    return tuple(found)


def nvcc(root: Path, environment: Mapping[str, str]) -> str | None:
    """The CUDA compiler: below CUDA_HOME, on the path, or in its usual place."""
    home = environment.get("CUDA_HOME")
    if home and os.access(Path(home, "bin/nvcc"), os.X_OK):
        return str(Path(home, "bin/nvcc"))
    on_path = shutil.which("nvcc", path=environment.get("PATH", ""))
    usual = root / "usr/local/cuda/bin/nvcc"
    return on_path or (str(usual) if os.access(usual, os.X_OK) else None)


def container(root: Path, environment: Mapping[str, str]) -> Container | None:
    """The container around this process, None on a bare host; the image as far as anything inside names it."""
    image = next((value for name, value in environment.items() if name.endswith(_PYXIS_IMAGE)), "")
    release = environment.get("NVIDIA_PYTORCH_VERSION")
    image = image or (f"NVIDIA PyTorch {release}" if release else "")
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if environment.get(name):
            return Container(runtime=name.split("_")[0].lower(), image=environment[name])
    podman = root / "run/.containerenv"
    if podman.exists():
        named = re.search(r'^image="([^"]*)"', read(podman), re.MULTILINE)
        return Container(runtime="podman", image=named[1] if named else image)
    groups = read(root / "proc/1/cgroup") + read(root / "proc/self/cgroup")
    if environment.get("KUBERNETES_SERVICE_HOST") or "kubepods" in groups:
        return Container(runtime="kubernetes", image=image)
    if (root / ".dockerenv").exists():
        return Container(runtime="docker", image=image)
    runtime = next((name for word, name in _CGROUP_RUNTIMES.items() if word in groups), "")
    if not runtime and any(name.startswith("ENROOT_") or name.endswith(_PYXIS_IMAGE) for name in environment):
        runtime = "enroot"
    return Container(runtime=runtime or "unknown", image=image) if runtime or image else None


def scheduler(environment: Mapping[str, str]) -> Scheduler:
    """Who placed this process. Under Slurm with torchrun inside, ranks are torchrun's: they are what runs."""
    torchrun = "TORCHELASTIC_RUN_ID" in environment or "LOCAL_WORLD_SIZE" in environment
    ranks = number(environment.get("WORLD_SIZE", "")) if torchrun else None
    per_node = number(environment.get("LOCAL_WORLD_SIZE", "")) if torchrun else None
    nodes = ranks // per_node if ranks and per_node else None
    if environment.get("SLURM_JOB_ID"):
        tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "")
        return Scheduler(
            kind="slurm",
            job=environment["SLURM_JOB_ID"],
            nodes=number(environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_JOB_NUM_NODES", "")),
            ranks=ranks or number(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "")),
            ranks_per_node=per_node or _equal_count(tasks),
        )
    if environment.get("KUBERNETES_SERVICE_HOST"):
        job = environment.get("HOSTNAME", "")
        return Scheduler(kind="kubernetes", job=job, nodes=nodes, ranks=ranks, ranks_per_node=per_node)
    if torchrun:
        job = environment.get("TORCHELASTIC_RUN_ID", "")
        return Scheduler(kind="torchrun", job=job, nodes=nodes, ranks=ranks, ranks_per_node=per_node)
    return Scheduler(kind="none")


def _equal_count(text: str) -> int | None:
    """Ranks on each node as Slurm writes them, `8(x2)`; None when nodes differ (`8(x2),4`)."""
    match = re.fullmatch(r"(\d+)(?:\(x\d+\))?", text)
    return int(match[1]) if match else None
