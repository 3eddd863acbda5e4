"""Site: where a job runs, probed on this machine or declared from the hardware catalogue."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.site.devices import Container, Gpu, Nic, Scheduler

Device = Literal["cpu", "cuda"]
Fabric = Literal["infiniband", "roce", "efa", "ethernet", "none", "unknown"]


class Site(BaseModel):
    """Accelerators, nodes and what joins them.

    Fields:
        name: catalogue key with the node count (`h100x2`), or the host's name when probed.
        declared: named by the user, not seen; nothing measured here speaks for it.
        device: torch device type that a measurement would use.
        gpu: key of the hardware catalogue, None when there is no GPU or it is not in the catalogue.
        gpu_name: as the driver reports it; empty when declared or without a GPU.
        gpus_per_node: GPUs of one node; 0 without.
        gpu_memory_bytes: of one GPU.
        hosts: names of the nodes that were seen.
        nvlink_domain: GPUs that reach each other over NVLink, None when unknown or without.
        fabric: between nodes; `none` on one node without a network device of that kind.
        cores: CPU cores that this process may use; memory_bytes: what it may use of the host's memory.
        driver: version of the GPU driver; cuda: newest CUDA that it supports.
        gpus, nics: devices of this node, empty when declared or not seen.
        imex_channels: device files through which NVLink memory is shared between nodes.
        kernel_modules: loaded modules that give adapters direct access to GPU memory; `nvidia-open` stands for the
            driver's open flavour, which needs none.
        nvcc: path of the CUDA compiler that packages compiling at run time need.
        notes: what could not be probed, and why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    declared: bool
    device: Device
    gpu: str | None = None
    gpu_name: str = ""
    gpus_per_node: int = Field(default=0, ge=0)
    gpu_memory_bytes: int | None = None
    nodes: int = Field(default=1, ge=1)
    hosts: tuple[str, ...] = ()
    nvlink_domain: int | None = None
    fabric: Fabric = "unknown"
    cpu_model: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    imex_channels: tuple[str, ...] = ()
    kernel_modules: tuple[str, ...] = ()
    nvcc: str | None = None
    container: Container | None = None
    scheduler: Scheduler | None = None
    notes: tuple[str, ...] = ()

    @property
    def transport(self) -> str:
        """torch.distributed backend that moves the tokens: `nccl` or `gloo`."""
        return "nccl" if self.device == "cuda" else "gloo"

    @property
    def ranks(self) -> int | None:
        """One rank for each GPU; None on a CPU site, where the job decides."""
        return self.nodes * self.gpus_per_node or None

    @property
    def is_multi_node_nvlink(self) -> bool:
        """Whether NVLink reaches beyond one node (NVL72)."""
        return self.nvlink_domain is not None and 0 < self.gpus_per_node < self.nvlink_domain

    def ranks_per_domain(self, ep: int) -> int | None:
        """Members of one EP group inside one NVLink domain: min(EP, domain, all ranks); None when unknown.

        Assumes consecutive ranks and expert tensor parallelism 1.
        """
        if self.nvlink_domain is None:
            return None
        return min(ep, self.nvlink_domain, self.ranks or self.nvlink_domain)

    def domains(self, ep: int) -> int | None:
        """NVLink domains that one EP group spans; None when unknown."""
        inside = self.ranks_per_domain(ep)
        return None if inside is None else -(-ep // inside)

    def domain_of(self, gpu: int = 0) -> str | None:
        """Name of the NVLink partition of one GPU, equal on every GPU it reaches: the rack's, else this host's.

        None without NVLink, or where the rack's partition is not known.
        """
        if self.nvlink_domain is None:
            return None
        fabric = self.gpus[gpu].fabric if gpu < len(self.gpus) else None
        if self.is_multi_node_nvlink:
            return fabric.domain if fabric is not None else None
        return self.hosts[0] if self.hosts else self.name

    @property
    def summary(self) -> str:
        """One line for a person."""
        origin = "declared" if self.declared else "this machine"
        if self.device == "cpu":
            memory = f", {self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else ""
            return f"{self.name} ({origin}): CPU, {self.cores} cores{memory}"
        what = self.gpu_name or (self.gpu or "unknown GPU").upper()
        domain = f", NVLink domain of {self.nvlink_domain}" if self.nvlink_domain else ""
        return f"{self.name} ({origin}): {self.nodes} x {self.gpus_per_node} {what}{domain}, fabric {self.fabric}"
