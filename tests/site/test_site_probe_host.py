"""The host around the GPUs: a made-up /proc, /sys and /dev, and environments of schedulers and containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_machine import write

from moe_dispatch.site.devices import Container, Scheduler
from moe_dispatch.site.probe_host import (
    container,
    cores,
    cpu_model,
    imex_channels,
    kernel_modules,
    memory_bytes,
    nvcc,
    scheduler,
)


def test_figures_are_cut_by_cgroup_limits(tmp_path: Path) -> None:
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
    (tmp_path / "proc/modules").mkdir()
    assert memory_bytes(tmp_path) is None
    assert cores(tmp_path) == len(os.sched_getaffinity(0))
    assert kernel_modules(tmp_path) == ()


def test_imex_channels_and_modules(tmp_path: Path) -> None:
    assert (imex_channels(tmp_path), kernel_modules(tmp_path)) == ((), ())
    write(tmp_path, "dev/nvidia-caps-imex-channels/channel0")
    write(tmp_path, "proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nib_core 1 2 nvidia_peermem,mlx5_ib, Live 0x0\n")
    assert imex_channels(tmp_path) == ("/dev/nvidia-caps-imex-channels/channel0",)
    assert kernel_modules(tmp_path) == ("nvidia_peermem",)
    write(tmp_path, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05")
    assert kernel_modules(tmp_path) == ("nvidia_peermem", "nvidia-open")


def test_the_compiler_is_that_of_cuda_home_first(tmp_path: Path) -> None:
    for place in ("home/bin/nvcc", "path/nvcc", "usr/local/cuda/bin/nvcc"):
        write(tmp_path, place)
        (tmp_path / place).chmod(0o755)
    environment = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert nvcc(tmp_path, environment) == str(tmp_path / "home/bin/nvcc")
    assert nvcc(tmp_path, {**environment, "CUDA_HOME": "/nowhere"}) == str(tmp_path / "path/nvcc")
    assert nvcc(tmp_path, {}) == str(tmp_path / "usr/local/cuda/bin/nvcc")
    assert nvcc(tmp_path / "empty", {}) is None


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, Container(runtime="docker")),
        (
            {".dockerenv": ""},
            {"NVIDIA_PYTORCH_VERSION": "26.06"},
            Container(runtime="docker", image="NVIDIA PyTorch 26.06"),
        ),
        (
            {"run/.containerenv": 'engine="podman-4.9"\nimage="nvcr.io/nvidia/nemo:26.06"\n'},
            {},
            Container(runtime="podman", image="nvcr.io/nvidia/nemo:26.06"),
        ),
        ({}, {"APPTAINER_CONTAINER": "/images/nemo.sif"}, Container(runtime="apptainer", image="/images/nemo.sif")),
        (
            {"proc/self/cgroup": "0::/kubepods.slice/pod1/cri-containerd-2.scope\n"},
            {},
            Container(runtime="kubernetes"),
        ),
        ({"proc/1/cgroup": "12:cpu:/docker/0f3e\n"}, {}, Container(runtime="docker")),
        (
            {},
            {"SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image": "nvcr.io#nvidia/nemo:26.06"},
            Container(runtime="enroot", image="nvcr.io#nvidia/nemo:26.06"),
        ),
    ],
)
def test_containers(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], expected: Container | None
) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    assert container(tmp_path, environment) == expected


SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "16",
    "SLURM_TASKS_PER_NODE": "8(x2)",
}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "r1", "WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Scheduler(kind="none")),
        ({"WORLD_SIZE": "8"}, Scheduler(kind="none")),
        (SLURM, Scheduler(kind="slurm", job="4711", nodes=2, ranks=16, ranks_per_node=8)),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "8,4"}, Scheduler(kind="slurm", job="4711", nodes=2, ranks=16)),
        (
            {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4"},
            Scheduler(kind="slurm", job="4711", nodes=1, ranks=4, ranks_per_node=4),
        ),
        (TORCHRUN, Scheduler(kind="torchrun", job="r1", nodes=8, ranks=32, ranks_per_node=4)),
        ({**SLURM, **TORCHRUN}, Scheduler(kind="slurm", job="4711", nodes=2, ranks=32, ranks_per_node=4)),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "worker-0", **TORCHRUN},
            Scheduler(kind="kubernetes", job="worker-0", nodes=8, ranks=32, ranks_per_node=4),
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "many"}, Scheduler(kind="slurm", job="1")),
    ],
)
def test_schedulers(environment: dict[str, str], expected: Scheduler) -> None:
    assert scheduler(environment) == expected
