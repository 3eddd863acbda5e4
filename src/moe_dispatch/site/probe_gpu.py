"""The GPUs of this machine: NVML in a child process where nvidia-ml-py is installed, else nvidia-smi, else what the
kernel drivers of NVIDIA and AMD show in /proc and /sys.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from moe_dispatch.site.devices import Gpu
from moe_dispatch.site.pci import device_path, numa_node, pci_address
from moe_dispatch.site.probe_amd import probe_amd
from moe_dispatch.site.probe_run import children, read, run_limited
from moe_dispatch.site.probe_smi import probe_smi
from moe_dispatch.site.probed import ProbedGpus

TIMEOUT_S = 15.0
"""For NVML and nvidia-smi each: without persistence mode the driver starts eight GPUs in several seconds."""

_NVML_CHILD = Path(__file__).with_name("probe_nvml.py")


def probe_gpus(root: Path, timeout_s: float = TIMEOUT_S) -> tuple[ProbedGpus, tuple[str, ...]]:
    """All GPUs, before CUDA_VISIBLE_DEVICES, and notes on what failed.

    Args:
        root: where /proc, /sys and /dev are looked for.
        timeout_s: for each tool.
    """
    notes: list[str] = []
    driver_seen = (root / "dev/nvidiactl").exists() or (root / "proc/driver/nvidia/version").exists()
    tool = shutil.which("nvidia-smi") is not None
    found = ProbedGpus()
    if (driver_seen or tool) and importlib.util.find_spec("pynvml") is not None:
        found = parse_nvml(run_limited((sys.executable, str(_NVML_CHILD)), timeout_s))
        if not found.gpus:
            notes.append("NVML gave no GPU (it failed, or did not answer in time)")
    if not found.gpus and tool:
        found = probe_smi(timeout_s)
        if not found.gpus:
            notes.append("nvidia-smi is there but gave no GPU (it failed, or did not answer in time)")
    if not found.gpus and driver_seen:
        found = probe_driver_files(root)
        if found.gpus:
            notes.append("GPUs are those the kernel driver lists: links, memory and fabric are unknown")
    if not found.gpus:
        found = probe_amd(root)
    return found.model_copy(update={"gpus": tuple(_near(root, gpu) for gpu in found.gpus)}), tuple(notes)


def parse_nvml(text: str | None) -> ProbedGpus:
    """The document of the NVML child; nothing when it is absent or damaged."""
    try:
        found = ProbedGpus.model_validate(json.loads(text or "{}"))
    except (ValueError, ValidationError):
        return ProbedGpus()
    gpus = tuple(gpu.model_copy(update={"pci": pci_address(gpu.pci)}) for gpu in found.gpus)
    return found.model_copy(update={"gpus": gpus})


def probe_driver_files(root: Path) -> ProbedGpus:
    """Names and addresses from /proc/driver/nvidia, which exists wherever the module is loaded."""
    gpus = []
    for index, folder in enumerate(children(root / "proc/driver/nvidia/gpus")):
        lines = (line.partition(":") for line in read(folder / "information").splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        if facts.get("Model"):
            uuid = facts.get("GPU UUID", "")
            gpus.append(Gpu(index=index, name=facts["Model"], uuid=uuid, pci=pci_address(folder.name)))
    return ProbedGpus(gpus=tuple(gpus), driver=read(root / "sys/module/nvidia/version") or None)


def visible(gpus: Sequence[Gpu], selection: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order.

    Indices count up to the first invalid one. A UUID may be cut short; one of a MIG instance, or any where the driver
    told no UUIDs, stands for the next GPU that is left.
    """
    if selection is None:
        return tuple(gpus)
    kept: list[Gpu] = []
    for part in (part.strip() for part in selection.split(",")):
        rest = [gpu for gpu in gpus if gpu not in kept]
        if part.isascii() and part.isdecimal() and int(part) < len(gpus):
            chosen = gpus[int(part)]
        elif part.startswith("GPU-") and any(gpu.uuid for gpu in gpus):
            named = [gpu for gpu in gpus if gpu.uuid.startswith(part)]
            if len(named) != 1:
                break
            chosen = named[0]
        elif part.startswith(("GPU-", "MIG-")) and rest:
            chosen = rest[0]
        else:
            break
        if chosen in kept:
            return ()  # CUDA shows no device at all when one is named twice
        kept.append(chosen)
    return tuple(kept)


def _near(root: Path, gpu: Gpu) -> Gpu:
    """The GPU with the memory node and the processors that are near, from sysfs."""
    if not gpu.pci:
        return gpu
    folder = device_path(root, gpu.pci)
    return gpu.model_copy(update={"numa_node": numa_node(folder), "cpus": read(folder / "local_cpulist")})
