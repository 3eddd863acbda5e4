"""Probing: a machine laid out in a folder, a made-up nvidia-smi, and this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moe_dispatch.site import probe as probing
from moe_dispatch.site.probe import GpuLine, cores, cpu_model, fabric, memory_bytes, parse_smi, probe, visible

EIGHT = "\n".join(["NVIDIA H100 80GB HBM3, 81559, 570.86.15"] * 8)
GPUS = [GpuLine(f"gpu{index}", None, None) for index in range(4)]


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a nvidia-smi first on the path."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_gpus_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, f"cat <<EOF\n{EIGHT}\nEOF")
    site = probe(nodes=2)
    assert (site.device, site.gpu, site.gpus_per_node, site.ranks) == ("cuda", "h100", 8, 16)
    assert (site.gpu_memory_bytes, site.driver, site.nvlink_domain) == (81559 * 2**20, "570.86.15", 8)
    assert not site.declared
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert probe().gpus_per_node == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe().device == "cpu"


def test_mixed_gpus_are_not_taken_for_a_node_of_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "echo NVIDIA H100 80GB HBM3, 81559, 570; echo NVIDIA H200, 143771, 570")
    site = probe()
    assert (site.gpu, site.gpus_per_node, site.nvlink_domain) == (None, 2, None)


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found; exit 6", "kill -9 $$", "exec sleep 60"])
def test_a_tool_that_fails_or_hangs_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(probing, "_SMI_TIMEOUT_S", 0.3)
    smi(tmp_path, monkeypatch, script)
    assert (probe().device, probe().transport) == ("cpu", "gloo")


def test_lines_that_are_no_gpu_are_skipped() -> None:
    text = "Failed to initialize NVML: Driver/library version mismatch\nNVIDIA GB10, [N/A], 580.1\n\n"
    assert parse_smi(text) == [GpuLine("NVIDIA GB10", None, "580.1")]


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (None, ["gpu0", "gpu1", "gpu2", "gpu3"]),
        ("2,0", ["gpu2", "gpu0"]),
        ("0,-1,1", ["gpu0"]),  # CUDA ignores everything from the first invalid index on
        ("0,9,1", ["gpu0"]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices(selection: str | None, names: list[str]) -> None:
    assert [gpu.name for gpu in visible(GPUS, selection)] == names


def test_gpus_selected_by_identifier_are_counted() -> None:
    assert len(visible(GPUS, "GPU-8932f937,MIG-77")) == 2


@pytest.mark.parametrize(
    ("device", "link_layer", "expected"),
    [
        ("mlx5_0", "InfiniBand", "infiniband"),
        ("mlx5_0", "Ethernet", "roce"),
        ("rdmap16s27", "Unspecified", "efa"),
    ],
)
def test_fabric_of_rdma_devices(tmp_path: Path, device: str, link_layer: str, expected: str) -> None:
    write(tmp_path, f"sys/class/infiniband/{device}/ports/1/link_layer", f"{link_layer}\n")
    write(tmp_path, "sys/class/net/eth0/mtu", "1500")
    assert fabric(tmp_path) == expected


def test_fabric_without_rdma(tmp_path: Path) -> None:
    assert fabric(tmp_path) == "none"
    write(tmp_path, "sys/class/net/lo/mtu", "65536")
    assert fabric(tmp_path) == "none"
    write(tmp_path, "sys/class/net/eth0/mtu", "1500")
    assert fabric(tmp_path) == "ethernet"


def test_host_figures_are_cut_by_cgroup_limits(tmp_path: Path) -> None:
    assert (cpu_model(tmp_path), memory_bytes(tmp_path)) == ("", None)
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n")
    write(tmp_path, "proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert cpu_model(tmp_path) == "AMD EPYC 9654 96-Core Processor"
    assert memory_bytes(tmp_path) == 16 * 2**20
    assert cores(tmp_path) == len(os.sched_getaffinity(0))
    write(tmp_path, "sys/fs/cgroup/memory.max", "1048576\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert memory_bytes(tmp_path) == 2**20
    assert cores(tmp_path) == 1


def test_malformed_files_are_unknown_not_errors(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "100000 0\n")
    assert memory_bytes(tmp_path) is None
    assert cores(tmp_path) == len(os.sched_getaffinity(0))
    assert probe(root=tmp_path).cpu_model == ""


def test_this_machine() -> None:
    site = probe()
    assert not site.declared
    assert site.hosts == (site.name,)
    assert site.memory_bytes is not None
    assert site.memory_bytes > 0
    assert site.ranks_per_domain(4) is None or site.nvlink_domain
    assert site.name in site.summary


def test_the_layer_imports_no_torch() -> None:
    code = (
        "import sys, moe_dispatch.site.gate, moe_dispatch.site.probe, moe_dispatch.site.stack, "
        "moe_dispatch.site.environment, moe_dispatch.site.hardware as h; h.declared_site('h100', 2); "
        "moe_dispatch.site.stack.stack_fingerprint(); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
