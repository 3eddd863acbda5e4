"""The hardware catalogue, and sites declared from it."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.data import read_yaml
from moe_dispatch.core.errors import UsageError
from moe_dispatch.site.model import Fabric, Site

_VENDOR_WORDS = {"nvidia": ("gpu", "tensor", "core"), "amd": ("instinct",)}

FABRICS: tuple[Fabric, ...] = ("infiniband", "roce", "efa", "ethernet")


class Hardware(BaseModel):
    """One accelerator in its usual node. Nominal figures; bandwidths are one direction of one GPU, in 1e9 bytes/s.

    Fields:
        match: words of the driver's device name that mean this accelerator; pci: its PCI vendor and device, where the
            driver may give no name.
        aliases: words that may stand beside the name when a site is declared.
        nvlink_domain: GPUs joined by the fast link (NVLink, or Infinity Fabric for AMD).
        sms: streaming multiprocessors (AMD: compute units).
        bf16_tflops, fp8_tflops: dense peaks; None without hardware for the format.
        link_gbytes_per_s: fast link; nic_gbytes_per_s: network adapter of one GPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    match: tuple[str, ...]
    pci: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    vendor: Literal["nvidia", "amd"]
    gpus_per_node: int
    nvlink_domain: int
    memory_gb: float
    sms: int
    capability: str
    bf16_tflops: float
    fp8_tflops: float | None
    link_gbytes_per_s: float
    nic_gbytes_per_s: float
    source: str


@cache
def load_hardware() -> dict[str, Hardware]:
    """The catalogue by name."""
    return {
        name: Hardware(name=name, **entry) for name, entry in read_yaml("moe_dispatch.site", "hardware.yaml").items()
    }


def find_hardware(name: str) -> Hardware:
    """An entry by a forgiving name: `h100`, `H100-SXM`, `hgx-h100`, `gb200-nvl72`, `h100-efa`, `NVIDIA GB200`.

    Raises:
        UsageError: not in the catalogue, or beside the name stands a word that means something else (`h100-pcie`);
            names what is known.
    """
    known = load_hardware()
    words = _words(name)
    found = list(dict.fromkeys(word for word in words if word in known))
    if len(found) == 1:
        entry = known[found[0]]
        allowed = {entry.name, entry.vendor, *_VENDOR_WORDS[entry.vendor], *entry.aliases, *FABRICS}
        strange = [word for word in words if word not in allowed]
        if not strange:
            return entry
        raise UsageError(
            f"unknown site {name!r}: {' '.join(strange)!r} is not part of {entry.name} ({entry.title})",
            f"use {entry.name!r}, with a network ({', '.join(FABRICS)}) or one of {', '.join(entry.aliases)} beside it",
        )
    close = difflib.get_close_matches("".join(words), _spellings(known), n=1)
    raise UsageError(
        f"unknown site {name!r}; known: {', '.join(known)}",
        f"did you mean {close[0]!r}?" if close else "see `moe-dispatch hardware`",
    )


def _words(name: str) -> list[str]:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).split()


def _spellings(known: dict[str, Hardware]) -> list[str]:
    return [*known, *(f"{entry.name}-{alias}" for entry in known.values() for alias in entry.aliases)]


def hardware_of_device(device_name: str) -> Hardware | None:
    """The entry for a device name as the driver reports it; None when the catalogue has none.

    PCIe and NVL cards have none: they are joined two by two or not at all, so an SXM entry would promise too much.
    """
    words = set(re.sub(r"[^A-Z0-9]+", " ", device_name.upper()).split())
    if words & {"PCIE", "NVL"}:
        return None
    return next((entry for entry in load_hardware().values() if words & set(entry.match)), None)


def hardware_of_pci(vendor: str, device: str) -> Hardware | None:
    """The entry for a PCI vendor and device as sysfs writes them (`0x1002`, `0x74a1`)."""
    address = f"{vendor}:{device}".replace("0x", "").lower()
    return next((entry for entry in load_hardware().values() if address in entry.pci), None)


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
    words = _words(name)
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
