"""Probing as a whole: a machine laid out in a folder, made-up tools, and this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import pci_device, rdma_device, smi, tool, write

from moe_dispatch.site.devices import Gpu, GpuFabric
from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.site.probe import nvlink_domain, probe
from moe_dispatch.site.probe_gpu import visible

UUIDS = [f"GPU-{index}a2b3c4d-0000-1111-2222-333344445555" for index in range(8)]
EIGHT = "\n".join(
    f"{i}, NVIDIA H100 80GB HBM3, {UUIDS[i]}, 00000000:{0x18 + i:02X}:00.0, 81559, 570.86.15, 9.0, Disabled"
    for i in range(8)
)
HEADING = "\t" + "\t".join(f"\x1b[4mGPU{i}" for i in range(8)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
ROWS = [
    f"GPU{i}\t" + "\t".join(" X " if i == j else "NV18" for j in range(8)) + "\t0-47,96-143\t0\t\tN/A" for i in range(8)
]
MATRIX = "\n".join([HEADING, *ROWS, "", "Legend:", "", "  X    = Self"])


def gpus(count: int, **fields: object) -> tuple[Gpu, ...]:
    return tuple(
        Gpu.model_validate({"index": index, "name": "x", "uuid": UUIDS[index], **fields}) for index in range(count)
    )


def test_a_node_of_eight_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path / "bin", monkeypatch, EIGHT, matrix=MATRIX)
    for index in range(8):
        bridge = f"pci0000:{0x10 + index:02x}/0000:{0x10 + index:02x}:01.0"
        pci_device(tmp_path, f"{bridge}/0000:{0x18 + index:02x}:00.0", numa_node=str(index // 4), local_cpulist="0-47")
        rdma_device(
            tmp_path, f"mlx5_{index}", f"{bridge}/0000:{0x40 + index:02x}:00.0", device="0x1021", vendor="0x15b3"
        )
    site = probe(nodes=2, root=tmp_path)
    assert (site.device, site.gpu, site.gpus_per_node, site.ranks) == ("cuda", "h100", 8, 16)
    assert (site.gpu_memory_bytes, site.driver, site.nvlink_domain) == (81559 * 2**20, "570.86.15", 8)
    assert (site.declared, site.fabric) == (False, "infiniband")
    fifth = site.gpus[5]
    assert (fifth.pci, fifth.capability, fifth.numa_node, fifth.cpus) == ("0000:1d:00.0", "9.0", 1, "0-47")
    assert (fifth.links[0], fifth.links[5], fifth.nvlinks, fifth.nics) == ("NV18", "X", 18, ("mlx5_5",))
    assert site.domain_of(5) == site.name  # NVLink ends at the node


def test_a_selection_leaves_links_among_the_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, EIGHT, matrix=MATRIX)
    site = probe(environment={"CUDA_VISIBLE_DEVICES": "6,1"})
    assert [gpu.index for gpu in site.gpus] == [6, 1]
    assert [gpu.links for gpu in site.gpus] == [("X", "NV18"), ("NV18", "X")]
    assert probe(environment={"CUDA_VISIBLE_DEVICES": ""}).device == "cpu"


def test_mixed_gpus_are_not_taken_for_a_node_of_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = EIGHT.splitlines()
    smi(tmp_path, monkeypatch, f"{lines[0]}\n{lines[1].replace('H100 80GB HBM3', 'H200')}\n")
    site = probe()
    assert (site.gpu, site.gpus_per_node, site.nvlink_domain) == (None, 2, None)


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found; exit 6", "kill -9 $$", "exec sleep 60"])
def test_a_tool_that_fails_or_hangs_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool(tmp_path, monkeypatch, script)
    site = probe(root=tmp_path, timeout_s=0.3)
    assert (site.device, site.transport) == ("cpu", "gloo")
    assert "nvidia-smi is there but gave no GPU" in site.notes[0]


def test_a_loaded_driver_is_seen_without_any_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    write(tmp_path, "dev/nvidiactl")
    write(tmp_path, "sys/module/nvidia/version", "580.95.05\n")
    text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 11\nGPU UUID: \t {UUIDS[0]}\nBus Location: \t 0000:1b:00.0\n"
    write(tmp_path, "proc/driver/nvidia/gpus/0000:1b:00.0/information", text)
    site = probe(root=tmp_path, environment={})
    assert (site.gpu, site.driver, site.gpus[0].pci, site.gpus[0].uuid) == (
        "h200",
        "580.95.05",
        "0000:1b:00.0",
        UUIDS[0],
    )
    assert site.gpus[0].memory_bytes is None
    assert "those the kernel driver lists" in site.notes[0]


@pytest.mark.parametrize(
    ("selection", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("0,-1,1", [0]),  # CUDA ignores everything from the first invalid index on
        ("0,9,1", [0]),
        ("NoDevFiles", []),
        (UUIDS[3], [3]),
        (f"{UUIDS[3][:9]},0", [3, 0]),  # CUDA takes a beginning that fits one GPU only
        ("GPU-", []),
        ("GPU-ffff", []),
        ("1,1", []),
        ("MIG-77aa", [0]),
    ],
)
def test_cuda_visible_devices(selection: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(gpus(4), selection)] == indices


def test_gpus_without_uuids_are_counted_when_selected_by_identifier() -> None:
    assert len(visible(gpus(4, uuid=""), "GPU-8932f937,MIG-77")) == 2


@pytest.mark.parametrize(
    ("found", "hardware", "domain"),
    [
        (gpus(2), "h100", 8),
        (gpus(1), "h100", None),  # one GPU alone has no peer
        (gpus(2, links=("X", "SYS")), "h100", None),  # what is seen wins over the catalogue
        (gpus(2, links=("X", "NV4")), None, 2),
        (gpus(2), None, None),
        (gpus(2, mig=True), "h100", None),
        (gpus(1), "gb200", 72),
        (gpus(2, links=("X", "NV18")), "gb200", 72),
        (gpus(2, links=("X", "NV18"), fabric=GpuFabric(state="not_supported")), "gb200", 2),  # a board in no rack
        ((), None, None),
    ],
)
def test_nvlink_domain(found: tuple[Gpu, ...], hardware: str | None, domain: int | None) -> None:
    assert nvlink_domain(found, load_hardware()[hardware] if hardware else None) == domain


def test_this_machine() -> None:
    site = probe()
    assert not site.declared
    assert site.hosts == (site.name,)
    assert site.memory_bytes is not None
    assert site.memory_bytes > 0
    assert len(site.gpus) == site.gpus_per_node
    assert site.name in site.summary


def test_an_empty_machine_is_unknown_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    site = probe(root=tmp_path, environment={})
    assert (site.device, site.fabric, site.nics, site.cpu_model, site.memory_bytes) == ("cpu", "none", (), "", None)
    assert (site.container, site.imex_channels, site.nvcc, site.notes) == (None, (), None, ())


def test_the_layer_imports_no_torch() -> None:
    code = (
        "import sys, moe_dispatch.site.gate, moe_dispatch.site.probe, moe_dispatch.site.stack, "
        "moe_dispatch.site.topology as t, moe_dispatch.site.environment, moe_dispatch.site.hardware as h; "
        "t.check_topology(t.TopologyInput(backend='hybridep', site=h.declared_site('h100', 2), ep=16)); "
        "moe_dispatch.site.stack.stack_fingerprint(); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
