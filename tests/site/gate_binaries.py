"""What a gate finds on a machine: shared objects with device code laid down by gcc, a compiler, a declared GPU."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from gate_modules import compile_shared

from moe_dispatch.site.devices import Gpu
from moe_dispatch.site.model import Site

PTX, CUBIN = 1, 2
ARCH_SPECIFIC, FAMILY = 1 << 20, 1 << 21


def container(*entries: tuple[int, int, int]) -> bytes:
    """One fat binary: (kind, architecture such as 90, flags) for each entry, with a body of 8 bytes."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQ", kind, 0x101, 64, 8, 0, 0, 8, 1, arch, 0, 0, flags) + b"\0" * 24
        for kind, arch, flags in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def with_device_code(target: Path, containers: Sequence[bytes], code: str = "", *flags: str) -> None:
    """A shared object whose section `.nv_fatbin` holds these containers."""
    data = b"".join(containers)
    listed = ",".join(map(str, data))
    section = f'__attribute__((section(".nv_fatbin"), aligned(8), used)) const unsigned char fat[] = {{{listed}}};\n'
    compile_shared(target, section + code, *flags)


def nvshmem_device(version: str) -> str:
    """C code that leaves the constant of NVSHMEM's device library."""
    numbers = version.replace(".", ",")
    return (
        "typedef struct {int major, minor, patch;} version_t;\n"
        f"static const version_t nvshmemi_device_lib_version __attribute__((used)) = {{{numbers}}};\n"
    )


def nvshmem_host(version: str) -> str:
    """C code of a host library that reports a version."""
    major, minor, patch = version.split(".")
    return (
        "int nvshmemx_vendor_get_version_info(int *a, int *b, int *c) "
        f"{{ *a = {major}; *b = {minor}; *c = {patch}; return 0; }}\n"
    )


def nccl(version: str) -> str:
    """C code of an NCCL that reports a version."""
    major, minor, patch = map(int, version.split("."))
    return f"int ncclGetVersion(int *v) {{ *v = {major * 10000 + minor * 100 + patch}; return 0; }}\n"


def compiler(folder: Path, script: str) -> str:
    """A CUDA folder whose nvcc is this shell script; the folder's path."""
    (folder / "bin").mkdir(parents=True)
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n{script}\n")
    nvcc.chmod(0o755)
    return str(folder)


def machine(capability: str = "9.0", **changes: object) -> Site:
    """A machine with one GPU."""
    gpu = Gpu(index=0, name="made up", capability=capability)
    fields: dict[str, object] = {"name": "m", "declared": False, "device": "cuda", "gpus_per_node": 1, "gpus": (gpu,)}
    return Site.model_validate(fields | changes)
