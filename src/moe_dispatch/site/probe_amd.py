"""AMD GPUs from the kernel driver's files: /sys/class/kfd (linux:Documentation and drivers/gpu/drm/amd/amdkfd)."""

from __future__ import annotations

from pathlib import Path

from moe_dispatch.site.devices import Gpu
from moe_dispatch.site.hardware import hardware_of_pci
from moe_dispatch.site.pci import device_path
from moe_dispatch.site.probe_run import children, number, read
from moe_dispatch.site.probed import ProbedGpus

_LINK_XGMI = 11
"""`type` of a link in the kernel's topology: 11 is Infinity Fabric, 2 PCI Express."""


def probe_amd(root: Path) -> ProbedGpus:
    """GPUs of the kernel's compute topology; nodes without compute units are processors."""
    folders = sorted(
        (folder for folder in children(root / "sys/class/kfd/kfd/topology/nodes") if folder.name.isdecimal()),
        key=lambda folder: int(folder.name),
    )
    nodes = {folder.name: facts for folder in folders if (facts := _facts(folder / "properties")).get("simd_count")}
    gpus = []
    for index, (name, facts) in enumerate(nodes.items()):
        pci = _address(facts)
        device = device_path(root, pci)
        gpus.append(
            Gpu(
                index=index,
                name=_name(device),
                uuid=f"{facts['unique_id']:016x}" if facts.get("unique_id") else "",
                pci=pci,
                memory_bytes=number(read(device / "mem_info_vram_total")),
                capability=_target(facts.get("gfx_target_version", 0)),
                sms=facts["simd_count"] // (facts.get("simd_per_cu") or 1),
                links=_links(root / "sys/class/kfd/kfd/topology/nodes" / name / "io_links", list(nodes), name),
            )
        )
    return ProbedGpus(gpus=tuple(gpus), driver=read(root / "sys/module/amdgpu/version") or None)


def _facts(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _address(facts: dict[str, int]) -> str:
    """The kernel packs bus, device and function into `location_id`."""
    place = facts.get("location_id", 0)
    return f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _target(version: int) -> str | None:
    """90402 is gfx942: major, minor and a hexadecimal step."""
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else None


def _name(device: Path) -> str:
    """The board's name when the driver tells it, else the catalogue's for its PCI id."""
    vendor, model = read(device / "vendor"), read(device / "device")
    known = hardware_of_pci(vendor, model)
    return read(device / "product_name") or (known.title if known else f"AMD GPU {model or 'of unknown model'}")


def _links(folder: Path, nodes: list[str], own: str) -> tuple[str, ...]:
    """Links to the other GPUs by index: `XGMI` or `PCIE`, `SYS` when there is none."""
    to: dict[str, str] = {}
    for link in children(folder):
        facts = _facts(link / "properties")
        to[str(facts.get("node_to"))] = "XGMI" if facts.get("type") == _LINK_XGMI else "PCIE"
    return tuple("X" if name == own else to.get(name, "SYS") for name in nodes)
