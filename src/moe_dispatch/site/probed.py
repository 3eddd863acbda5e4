"""What one source of GPU facts found: NVML, nvidia-smi, the kernel's files or AMD's."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from moe_dispatch.site.devices import Gpu


class ProbedGpus(BaseModel):
    """GPUs in the driver's order, with the driver's version and the newest CUDA that it supports."""

    model_config = ConfigDict(frozen=True)

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
