"""What one node holds, as far as it was seen: GPUs, network adapters, container and scheduler.

Parts of `Site`; everything that could not be seen is None or empty, never a guess. Rates are in Gbit/s as the port
reports them, memory in bytes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

NicKind = Literal["infiniband", "roce", "efa", "ethernet"]
FabricState = Literal["not_supported", "not_started", "in_progress", "completed", "unknown"]
SchedulerKind = Literal["slurm", "kubernetes", "torchrun", "none"]


class _Device(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuFabric(_Device):
    """Registration of one GPU with the fabric that joins NVLink across nodes (NVML `nvmlDeviceGetGpuFabricInfoV`).

    Fields:
        state: `completed` once the fabric manager has placed the GPU in a clique.
        status: how the registration ended, `success` or the driver's words; empty when unknown. On boards whose NVLink
            ends at the node, some drivers tell a failure here that means nothing (meta-pytorch/torchcomms#936).
        cluster: UUID of the NVLink domain; clique: number of the partition in it. GPUs reach each other over NVLink
            exactly when both are equal.
        problems: what the driver's health report complains of (`degraded bandwidth`, ...); empty when nothing.
    """

    state: FabricState
    status: str = ""
    cluster: str = ""
    clique: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def domain(self) -> str | None:
        """Name of the NVLink partition, equal on all GPUs of it; None until registration has succeeded.

        A cluster of zeros is none: boards report it, and it would join GPUs of unconnected hosts.
        """
        succeeded = self.state == "completed" and self.status in ("success", "")
        registered = succeeded and self.clique is not None and self.cluster.strip("0-")
        return f"{self.cluster}.{self.clique}" if registered else None


class Gpu(_Device):
    """One accelerator.

    Fields:
        index: as the driver counts, before CUDA_VISIBLE_DEVICES.
        pci: PCI address in sysfs form (`0000:1b:00.0`).
        capability: compute capability (`9.0`) or AMD target (`gfx942`).
        numa_node, cpus: host memory node and CPU list that are near.
        nvlinks: active NVLink lanes.
        links: how each GPU of the node is reached, by index (`NV18`, `PIX`, `SYS`, `X` for itself).
        p2p: whether each GPU of the node can be read directly, by index.
        nics: names of the nearest network adapters.
        mig: the GPU is split into MIG instances, so no process sees it whole.
    """

    index: int
    name: str
    uuid: str = ""
    pci: str = ""
    memory_bytes: int | None = None
    capability: str | None = None
    sms: int | None = None
    numa_node: int | None = None
    cpus: str = ""
    nvlinks: int | None = None
    links: tuple[str, ...] = ()
    p2p: tuple[bool, ...] = ()
    nics: tuple[str, ...] = ()
    mig: bool = False
    fabric: GpuFabric | None = None


class Nic(_Device):
    """One network adapter, RDMA device or plain interface.

    Fields:
        name: RDMA device (`mlx5_0`) or interface (`eth0`).
        rate_gbps: of the fastest port, Gbit/s.
        active: whether a port is up.
        driver: kernel driver (`mlx5_core`); model: device name by PCI id when known.
        interfaces: network interfaces of the same PCI device.
    """

    name: str
    kind: NicKind
    rate_gbps: float | None = None
    active: bool = True
    numa_node: int | None = None
    pci: str = ""
    driver: str = ""
    model: str = ""
    interfaces: tuple[str, ...] = ()


class Container(_Device):
    """The container this process is in; `image` is empty when nothing inside names it."""

    runtime: str
    image: str = ""


class Scheduler(_Device):
    """Who placed this process, from its environment."""

    kind: SchedulerKind
    job: str = ""
    nodes: int | None = None
    ranks: int | None = None
    ranks_per_node: int | None = None
