"""PCI addresses, and how near two devices are to each other in sysfs."""

from __future__ import annotations

import re
from pathlib import Path

from moe_dispatch.site.probe_run import number, read, real

_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


def pci_address(text: str) -> str:
    """An address in sysfs form, `0000:1b:00.0`; NVML and nvidia-smi write the PCI domain with eight digits.

    Empty when it is none.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return ""
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def device_path(root: Path, address: str) -> Path:
    """The device's folder in sysfs."""
    return root / "sys/bus/pci/devices" / address


def numa_node(folder: Path) -> int | None:
    """NUMA node of the device in this sysfs folder; None where the firmware names none (-1)."""
    return number(read(folder / "numa_node"))


def route(root: Path, address: str) -> tuple[str, ...]:
    """The bridges from the root complex down to a device, itself included; empty when it is not in sysfs."""
    folder = device_path(root, address)
    if not address or not folder.exists():
        return ()
    parts = Path(real(folder)).parts
    start = next((place for place, part in enumerate(parts) if part.startswith("pci")), None)
    return parts[start:] if start is not None else ()


def shared_bridges(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Steps that two routes have in common, from the root complex on; 0 when they share none."""
    common = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        common += 1
    return common
