"""Probing this machine without torch: the kernel's files, and NVML or nvidia-smi in a child under a time limit."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from moe_dispatch.site.devices import Gpu
from moe_dispatch.site.hardware import Hardware, hardware_of_device
from moe_dispatch.site.model import Site
from moe_dispatch.site.probe_gpu import TIMEOUT_S, probe_gpus, visible
from moe_dispatch.site.probe_host import (
    container,
    cores,
    cpu_model,
    imex_channels,
    kernel_modules,
    memory_bytes,
    nvcc,
    scheduler,
)
from moe_dispatch.site.probe_nics import fabric_of, probe_nics, with_nearest

_AMD_TARGET = "gfx"


def probe(
    nodes: int = 1,
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Site:
    """What this machine is. Never raises: what cannot be seen stays unknown.

    Args:
        nodes: nodes of the job, which one of them cannot see.
        root: where /proc, /sys and /dev are looked for.
        environment: default `os.environ`.
        timeout_s: for NVML and nvidia-smi each.
    """
    environment = os.environ if environment is None else environment
    host = socket.gethostname()
    found, notes = probe_gpus(root, timeout_s)
    nics = probe_nics(root)
    gpus = with_nearest(_selected(found.gpus, environment), nics, root)
    first = gpus[0] if gpus else None
    hardware = hardware_of_device(first.name) if first and all(gpu.name == first.name for gpu in gpus) else None
    return Site(
        name=host,
        declared=False,
        device="cuda" if gpus else "cpu",
        gpu=hardware.name if hardware else None,
        gpu_name=first.name if first else "",
        gpus_per_node=len(gpus),
        gpu_memory_bytes=first.memory_bytes if first else None,
        nodes=nodes,
        hosts=(host,),
        nvlink_domain=nvlink_domain(gpus, hardware),
        fabric=fabric_of(nics),
        cpu_model=cpu_model(root),
        cores=cores(root),
        memory_bytes=memory_bytes(root),
        driver=found.driver,
        cuda=found.cuda,
        gpus=gpus,
        nics=nics,
        imex_channels=imex_channels(root),
        kernel_modules=kernel_modules(root),
        nvcc=nvcc(root, environment),
        container=container(root, environment),
        scheduler=scheduler(environment),
        notes=notes,
    )


def nvlink_domain(gpus: Sequence[Gpu], hardware: Hardware | None) -> int | None:
    """GPUs that reach each other over NVLink or Infinity Fabric, as seen; the catalogue's for what one node cannot see.

    None without such links, and for a single GPU that is in no rack.
    """
    if any(gpu.mig for gpu in gpus):
        return None
    seen = [link for gpu in gpus for link in gpu.links if link != "X"]
    joined = all(link.startswith(("NV", "XGMI")) for link in seen) if seen else None
    if joined is False:
        return None
    rack = hardware is not None and hardware.nvlink_domain > hardware.gpus_per_node
    if rack and all(gpu.fabric is None or gpu.fabric.state != "not_supported" for gpu in gpus):
        return hardware.nvlink_domain if hardware is not None else None
    if len(gpus) < 2:
        return None
    if hardware is not None and not rack:
        return hardware.nvlink_domain
    return len(gpus) if joined else None


def _selected(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """What the visibility variables leave, and links only among those."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    kept = tuple(gpus)
    if gpus and (gpus[0].capability or "").startswith(_AMD_TARGET):
        kept = visible(kept, environment.get("ROCR_VISIBLE_DEVICES"))
        chosen = environment.get("HIP_VISIBLE_DEVICES", chosen)
    kept = visible(kept, chosen)
    if len(kept) == len(gpus) or any(len(gpu.links) not in (0, len(gpus)) for gpu in kept):
        return kept
    places = [gpu.index for gpu in kept]
    return tuple(
        gpu.model_copy(
            update={
                "links": tuple(gpu.links[place] for place in places) if gpu.links else (),
                "p2p": tuple(gpu.p2p[place] for place in places) if gpu.p2p else (),
            }
        )
        for gpu in kept
    )
