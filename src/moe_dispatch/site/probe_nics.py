"""Network adapters from /sys/class/infiniband and /sys/class/net, and which GPU each is near.

Port files: linux:Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from moe_dispatch.core.data import read_yaml
from moe_dispatch.site.devices import Gpu, Nic, NicKind
from moe_dispatch.site.model import Fabric
from moe_dispatch.site.pci import numa_node, pci_address, route, shared_bridges
from moe_dispatch.site.probe_run import children, number, read, real

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_NAMES = re.compile(r"(eth|en|ib|hsi|bond)")
_BEST: tuple[NicKind, ...] = ("efa", "infiniband", "roce", "ethernet")


def probe_nics(root: Path) -> tuple[Nic, ...]:
    """RDMA devices, then interfaces that belong to none of them."""
    rdma = tuple(_rdma_device(folder) for folder in children(root / "sys/class/infiniband"))
    taken = {name for nic in rdma for name in nic.interfaces}
    plain = (_interface(folder) for folder in children(root / "sys/class/net") if folder.name not in taken)
    return rdma + tuple(nic for nic in plain if nic is not None)


def fabric_of(nics: Sequence[Nic]) -> Fabric:
    """The best kind of adapter with a port that is up: EFA, InfiniBand, RoCE, else plain Ethernet, else none."""
    kinds = {nic.kind for nic in nics if nic.active}
    return next((kind for kind in _BEST if kind in kinds), "none")


def with_nearest(gpus: Sequence[Gpu], nics: Sequence[Nic], root: Path) -> tuple[Gpu, ...]:
    """GPUs with the names of their nearest RDMA adapters: most bridges in common, else the same memory node."""
    able = [(nic, route(root, nic.pci)) for nic in nics if nic.active and nic.kind != "ethernet"]
    found = []
    for gpu in gpus:
        path = route(root, gpu.pci)
        shared = {nic.name: shared_bridges(path, other) for nic, other in able}
        most = max(shared.values(), default=0)
        near = [name for name, count in shared.items() if most and count == most]
        if not near and gpu.numa_node is not None:
            near = [nic.name for nic, _ in able if nic.numa_node == gpu.numa_node]
        found.append(gpu.model_copy(update={"nics": tuple(near)}))
    return tuple(found)


def _rdma_device(folder: Path) -> Nic:
    device = folder / "device"
    driver = os.path.basename(real(device / "driver")) if (device / "driver").exists() else ""
    ports = children(folder / "ports")
    layers = {read(port / "link_layer") for port in ports}
    states = [state for port in ports if (state := read(port / "state"))]
    rates = [float(match[1]) for port in ports if (match := _RATE.match(read(port / "rate")))]
    kind: NicKind = "infiniband" if "InfiniBand" in layers else "roce"
    if driver == "efa" or folder.name.startswith(("efa", "rdmap")):
        kind = "efa"
    return Nic(
        name=folder.name,
        kind=kind,
        rate_gbps=max(rates, default=None),
        active=not states or any(state.endswith("ACTIVE") for state in states),
        numa_node=numa_node(device),
        pci=pci_address(os.path.basename(real(device))),
        driver=driver,
        model=_model(device),
        interfaces=tuple(entry.name for entry in children(device / "net")),
    )


def _interface(folder: Path) -> Nic | None:
    """A plain interface; None for loop-back and for virtual ones that lead nowhere by themselves."""
    device = folder / "device"
    if folder.name == "lo" or not (device.exists() or _NAMES.match(folder.name)):
        return None
    speed = number(read(folder / "speed"))
    return Nic(
        name=folder.name,
        kind="ethernet",
        rate_gbps=speed / 1000 if speed else None,
        active=read(folder / "operstate") not in ("down", "notpresent", "lowerlayerdown"),
        numa_node=numa_node(device),
        pci=pci_address(os.path.basename(real(device))) if device.exists() else "",
        driver=os.path.basename(real(device / "driver")) if (device / "driver").exists() else "",
        model=_model(device),
        interfaces=(folder.name,),
    )


def _model(device: Path) -> str:
    return _adapters().get(f"{read(device / 'vendor')}:{read(device / 'device')}".replace("0x", ""), "")


@cache
def _adapters() -> dict[str, str]:
    """Names of adapters by PCI vendor and device."""
    return {str(key): str(name) for key, name in read_yaml("moe_dispatch.site", "adapters.yaml").items()}
