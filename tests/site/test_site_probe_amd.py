"""AMD GPUs from a made-up kernel topology."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import pci_device, write

from moe_dispatch.site.probe import probe
from moe_dispatch.site.probe_amd import probe_amd

NODES = "sys/class/kfd/kfd/topology/nodes"
MEMORY = 206141652992


def platform(root: Path, gpus: int = 2, name: str = "AMD Instinct MI300X OAM") -> None:
    """Two processors (nodes 0 and 1), then GPUs that are all joined by Infinity Fabric."""
    for node in (0, 1):
        write(root, f"{NODES}/{node}/properties", "cpu_cores_count 96\nsimd_count 0\n")
    for index in range(gpus):
        node, bus = index + 2, 0x05 + 0x10 * index
        write(
            root,
            f"{NODES}/{node}/properties",
            f"cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nunique_id {1000 + index}\n"
            f"location_id {bus << 8}\ndomain 0\n",
        )
        for peer in range(gpus):
            if peer != index:
                write(root, f"{NODES}/{node}/io_links/{peer}/properties", f"type 11\nnode_to {peer + 2}\n")
        write(root, f"{NODES}/{node}/io_links/9/properties", "type 2\nnode_to 0\n")
        files = {"vendor": "0x1002", "device": "0x74a1", "mem_info_vram_total": str(MEMORY), "numa_node": "1"}
        if name:
            files["product_name"] = name
        pci_device(root, f"pci0000:00/0000:00:0{index + 1}.0/0000:{bus:02x}:00.0", **files)
    write(root, "sys/module/amdgpu/version", "6.12.12\n")


def test_gpus_of_the_compute_topology(tmp_path: Path) -> None:
    platform(tmp_path)
    found = probe_amd(tmp_path)
    assert (found.driver, len(found.gpus)) == ("6.12.12", 2)
    second = found.gpus[1]
    assert (second.name, second.pci, second.capability) == ("AMD Instinct MI300X OAM", "0000:15:00.0", "gfx942")
    assert (second.memory_bytes, second.sms, second.links) == (MEMORY, 304, ("XGMI", "X"))


def test_the_site_of_such_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform(tmp_path, gpus=8)
    monkeypatch.setenv("PATH", str(tmp_path))
    site = probe(root=tmp_path, environment={})
    assert (site.device, site.gpu, site.gpus_per_node, site.nvlink_domain) == ("cuda", "mi300x", 8, 8)
    assert site.gpus[0].numa_node == 1
    chosen = probe(root=tmp_path, environment={"HIP_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "6,7"})
    assert [gpu.index for gpu in chosen.gpus] == [6, 7]  # two names of one selection, not one after the other
    nested = probe(root=tmp_path, environment={"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2"})
    assert [gpu.index for gpu in nested.gpus] == [6]


def test_a_board_without_a_name_is_known_by_its_pci_id(tmp_path: Path) -> None:
    platform(tmp_path, name="")
    assert probe_amd(tmp_path).gpus[0].name == "Instinct MI300X 192 GB"
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0/device").write_text("0x740f\n")
    assert probe_amd(tmp_path).gpus[0].name == "AMD GPU 0x740f"


def test_no_topology_means_no_gpu(tmp_path: Path) -> None:
    assert probe_amd(tmp_path).gpus == ()
    write(tmp_path, f"{NODES}/0/properties", "simd_count x\nbroken\n")
    assert probe_amd(tmp_path).gpus == ()
