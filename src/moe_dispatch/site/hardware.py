"""The hardware catalogue, and sites declared from it."""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.errors import UsageError
from moe_dispatch.site.model import Fabric, Site

FABRICS: tuple[Fabric, ...] = ("infiniband", "roce", "efa", "ethernet")


class Hardware(BaseModel):
    """One accelerator in its usual node. Nominal figures; bandwidths are one direction of one GPU, in 1e9 bytes/s.

    Fields:
        match: words of the driver's device name that mean this accelerator.
        nvlink_domain: GPUs joined by the fast link (NVLink, or Infinity Fabric for AMD).
        sms: streaming multiprocessors (AMD: compute units).
        bf16_tflops: dense peak.
        link_gbytes_per_s: fast link; nic_gbytes_per_s: network adapter of one GPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    match: tuple[str, ...]
    vendor: Literal["nvidia", "amd"]
    gpus_per_node: int
    nvlink_domain: int
    memory_gb: float
    sms: int
    capability: str
    bf16_tflops: float
    link_gbytes_per_s: float
    nic_gbytes_per_s: float
    source: str


@cache
def load_hardware() -> dict[str, Hardware]:
    """The catalogue by name."""
    text = resources.files("moe_dispatch.site").joinpath("hardware.yaml").read_text(encoding="utf-8")
    return {name: Hardware(name=name, **entry) for name, entry in yaml.safe_load(text).items()}


def find_hardware(name: str) -> Hardware:
    """An entry by a forgiving name: `h100`, `H100-SXM`, `gb200-nvl72`, `NVIDIA GB200`, `DGX B200`.

    Raises:
        UsageError: not in the catalogue; names what is.
    """
    known = load_hardware()
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    found = [word for word in words if word in known]
    if len(set(found)) == 1:
        return known[found[0]]
    close = difflib.get_close_matches("".join(words), known, n=1)
    raise UsageError(
        f"unknown site {name!r}; known: {', '.join(known)}",
        f"did you mean {close[0]!r}?" if close else "see `moe-dispatch hardware`",
    )


def hardware_of_device(device_name: str) -> Hardware | None:
    """The entry for a device name as the driver reports it; None when the catalogue has none.

    PCIe and NVL cards have none: they are joined two by two or not at all, so an SXM entry would promise too much.
    """
    words = set(re.sub(r"[^A-Z0-9]+", " ", device_name.upper()).split())
    if words & {"PCIE", "NVL"}:
        return None
    return next((entry for entry in load_hardware().values() if words & set(entry.match)), None)


def declared_site(name: str, nodes: int = 1, fabric: str | None = None) -> Site:
    """A site of catalogue hardware that need not be this machine.

    Args:
        name: forgiving catalogue name; a word among `infiniband`, `roce`, `efa`, `ethernet` in it names the fabric
            (`h100-efa`), unless `fabric` does.

    Raises:
        UsageError: unknown hardware or fabric, or fewer than one node.
    """
    if nodes < 1:
        raise UsageError(f"nodes={nodes} must be at least 1")
    entry = find_hardware(name)
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    wanted = fabric or next((word for word in words if word in FABRICS), "unknown")
    if wanted not in (*FABRICS, "unknown"):
        raise UsageError(f"unknown fabric {wanted!r}; known: {', '.join(FABRICS)}")
    chosen: Fabric = next((each for each in FABRICS if each == wanted), "unknown")
    return Site(
        name=f"{entry.name}x{nodes}",
        declared=True,
        device="cuda",
        gpu=entry.name,
        gpus_per_node=entry.gpus_per_node,
        gpu_memory_bytes=int(entry.memory_gb * 1e9),
        nodes=nodes,
        nvlink_domain=entry.nvlink_domain,
        fabric=chosen,
    )


def is_this_machine(declared: Site, probed: Site) -> bool:
    """Whether what was declared is what was probed: same GPU, as many to a node, as many nodes, no other fabric."""
    if declared.device != probed.device or declared.gpu != probed.gpu:
        return False
    if "unknown" not in (declared.fabric, probed.fabric) and declared.nodes > 1 and declared.fabric != probed.fabric:
        return False
    return (declared.gpus_per_node, declared.nodes) == (probed.gpus_per_node, probed.nodes)
