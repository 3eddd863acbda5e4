"""A machine laid out in a folder: files of /proc, /sys and /dev, PCI devices with their bridges, and made-up tools."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def write(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def link(root: Path, path: str, target: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / target).mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(root / target)


def pci_device(root: Path, route: str, **files: str) -> None:
    """A device at the end of a route of bridges, such as `pci0000:15/0000:15:01.0/0000:1b:00.0`."""
    address = route.rsplit("/", 1)[-1]
    link(root, f"sys/bus/pci/devices/{address}", f"sys/devices/{route}")
    for name, text in files.items():
        write(root, f"sys/devices/{route}/{name}", f"{text}\n")


def rdma_device(root: Path, name: str, route: str, *, layer: str = "InfiniBand", **files: str) -> None:
    """An RDMA device with one port; `driver`, `state`, `rate` and files of the PCI device may be given."""
    ports = f"sys/class/infiniband/{name}/ports/1"
    write(root, f"{ports}/link_layer", f"{layer}\n")
    write(root, f"{ports}/state", files.pop("state", "4: ACTIVE") + "\n")
    write(root, f"{ports}/rate", files.pop("rate", "400 Gb/sec (4X NDR)") + "\n")
    driver, interface = files.pop("driver", "mlx5_core"), files.pop("interface", "")
    pci_device(root, route, **files)
    link(root, f"sys/class/infiniband/{name}/device", f"sys/devices/{route}")
    link(root, f"sys/devices/{route}/driver", f"sys/bus/pci/drivers/{driver}")
    if interface:
        (root / f"sys/devices/{route}/net/{interface}").mkdir(parents=True)
        link(root, f"sys/class/net/{interface}/device", f"sys/devices/{route}")


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, name: str = "nvidia-smi") -> None:
    """Put a shell script first on the path; no GPU is selected away, and NVML is not asked."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, query: str, report: str = "", matrix: str = "") -> None:
    """A nvidia-smi that prints one text for each of the three calls."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("query", query), ("report", report), ("matrix", matrix)):
        (folder / name).write_text(text)
    cases = f"topo) cat {folder}/matrix;; -q) cat {folder}/report;; *) cat {folder}/query;;"
    tool(folder, monkeypatch, f'case "$1" in {cases} esac')
