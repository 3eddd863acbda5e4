"""The level `supported`: what a package needs (`PackageNeeds`) against this machine and the libraries that were loaded.

Compatibility of binaries and drivers: CUDA C++ Programming Guide (binary and PTX compatibility) and CUDA Compatibility
(a driver serves every CUDA of its major version or an older one).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.site.gate_compiler import try_compiler
from moe_dispatch.site.gate_diagnosis import Diagnosis
from moe_dispatch.site.gate_elf import Binary, read_binary
from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.site.libraries import resolve_libraries
from moe_dispatch.site.model import Site
from moe_dispatch.site.versions import release

_FABRIC_OFF = ("0", "false")
_COMPAT = "/compat/"
"""Folder of the package cuda-compat, which serves a newer CUDA on an older data centre driver."""


@dataclass(frozen=True)
class Support:
    """What was checked.

    Fields:
        evidence: one entry for each check that could be made.
        failures: checks that failed, the most fundamental first.
        notes: what may do harm under conditions that the gate does not know.
        architectures: what the package's binaries hold code for.
    """

    evidence: tuple[str, ...]
    failures: tuple[Diagnosis, ...]
    notes: tuple[str, ...]
    architectures: tuple[str, ...]


@dataclass(frozen=True)
class _Seen:
    spec: BackendSpec
    site: Site
    report: Mapping[str, Any]
    binaries: tuple[Binary, ...]
    environment: Mapping[str, str]

    @property
    def capability(self) -> str | None:
        """Of the first GPU, from the driver or else from the catalogue."""
        if self.site.gpus and self.site.gpus[0].capability:
            return self.site.gpus[0].capability
        return load_hardware()[self.site.gpu].capability if self.site.gpu else None


Outcome = str | Diagnosis
"""Evidence of a check that passed, or why it failed."""


def check_support(
    spec: BackendSpec, site: Site, report: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Support:
    """Check what a package needs, as far as it can be seen; what cannot be seen is left out.

    Args:
        report: what the gate's child wrote (`gate_child.py`).
        environment: of the ranks; default `os.environ`.
    """
    found = tuple(binary for path in report.get("binaries") or () if (binary := read_binary(path)) is not None)
    seen = _Seen(spec, site, report, found, os.environ if environment is None else environment)
    checks = (_driver, _capability, _architectures, _cuda_major, _nccl, _nvshmem, _peers, _fabric, _compiler)
    outcomes = [outcome for check in checks for outcome in check(seen)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Diagnosis)]
    notes = list(_notes(seen))
    if spec.kind == "builtin":  # it needs torch only; whether torch can use the GPU shows when a buffer is made
        notes += [failure.reason for failure in failures]
        failures = []
    architectures = sorted({each for binary in found for each in binary.architectures})
    return Support(
        evidence=tuple(outcome for outcome in outcomes if isinstance(outcome, str)),
        failures=tuple(failures),
        notes=tuple(notes),
        architectures=tuple(map(str, architectures)),
    )


def _driver(seen: _Seen) -> Iterator[Outcome]:
    offered, wanted = seen.site.cuda, seen.report.get("torch_cuda")
    if not offered or not wanted:
        return
    if release(offered)[:1] < release(wanted)[:1]:
        if _COMPAT in resolve_libraries(seen.environment).get("libcuda.so.1", ""):
            yield f"driver for CUDA {offered}, torch for {wanted} through the forward-compatible libcuda"
            return
        yield Diagnosis(
            "driver-too-old",
            f"the GPU driver {seen.site.driver or ''} serves CUDA {offered}, but torch was built for CUDA {wanted}",
            f"update the driver, or install a torch for CUDA {release(offered)[0]}",
        )
    else:
        yield f"driver for CUDA {offered}, torch for {wanted}"


def _capability(seen: _Seen) -> Iterator[Outcome]:
    least, have = seen.spec.needs.capability_min, seen.capability
    if not least or not have:
        return
    if _numbers(have) < _numbers(least):
        yield Diagnosis(
            "unsupported-gpu",
            f"{seen.spec.name} needs a GPU of compute capability {least} or newer; this one has {have}",
            "use alltoall on this machine",
        )
    else:
        yield f"compute capability {have}, needs {least}"


def _architectures(seen: _Seen) -> Iterator[Outcome]:
    have = seen.capability
    if not have or not _numbers(have):
        return
    for binary in seen.binaries:
        if not binary.architectures:
            continue
        built = ", ".join(map(str, binary.architectures))
        name = os.path.basename(binary.path)
        if any(each.runs_on(_numbers(have)) for each in binary.architectures):
            yield f"{name} holds code for {built}; this GPU is {have}"
        elif not any(_serves(other, have) for other in seen.binaries if os.path.basename(other.path) == name):
            yield Diagnosis(
                "wrong-sm-arch",
                f"{name} holds code for {built} only, which this GPU ({have}) cannot run",
                f"rebuild with TORCH_CUDA_ARCH_LIST including {have}",
            )


def _serves(binary: Binary, capability: str) -> bool:
    """A package may ship the same library once for each CUDA; one of them is enough."""
    return any(each.runs_on(_numbers(capability)) for each in binary.architectures)


def _cuda_major(seen: _Seen) -> Iterator[Outcome]:
    wanted = seen.report.get("torch_cuda")
    if not wanted:
        return
    for binary in seen.binaries:
        major = binary.cuda_major
        if major is None:
            continue
        name = os.path.basename(binary.path)
        if major != release(wanted)[0]:
            yield Diagnosis(
                "wrong-cuda-major",
                f"{name} was built for CUDA {major}, torch for CUDA {wanted}",
                f"install a build for CUDA {release(wanted)[0]}",
            )
        else:
            yield f"{name} and torch are both for CUDA {major}"


def _nccl(seen: _Seen) -> Iterator[Outcome]:
    copies = seen.report.get("nccl_copies") or []
    uses = seen.spec.needs.nccl_min or any(name.startswith("libnccl.so") for b in seen.binaries for name in b.needed)
    if uses and len(copies) > 1:
        yield Diagnosis(
            "two-nccl-copies",
            f"more than one NCCL is loaded: {', '.join(copies)}",
            "leave one libnccl visible (LD_LIBRARY_PATH, LD_PRELOAD, system packages)",
        )
    least, have = seen.spec.needs.nccl_min, seen.report.get("nccl_version")
    if not least or not have:
        return
    if release(have) < release(least):
        where = f" from {copies[0]}" if copies else ""
        yield Diagnosis(
            "nccl-too-old",
            f"{seen.spec.name} needs NCCL {least} or newer; {have} is {'loaded' if copies else 'installed'}{where}",
            f"install NCCL {least} or newer and let LD_LIBRARY_PATH or LD_PRELOAD put it first",
        )
    else:
        yield f"NCCL {have}, needs {least}"


def _nvshmem(seen: _Seen) -> Iterator[Outcome]:
    host = seen.report.get("nvshmem_version")
    for binary in seen.binaries:
        device = binary.nvshmem_device
        if device is None or host is None:
            continue
        name = os.path.basename(binary.path)
        crossed = [each for each in seen.spec.needs.nvshmem_split if _new(device, each) != _new(host, each)]
        if crossed:
            yield Diagnosis(
                "nvshmem-split",
                f"{name} holds NVSHMEM {device} device code, but the host library that is loaded is {host}; "
                f"queue pairs are ordered in another way from {crossed[0]} on",
                f"load libnvshmem_host of {device} (first in LD_LIBRARY_PATH), or rebuild against {host}",
            )
        else:
            yield f"NVSHMEM {device} in {name}, host library {host}"


def _new(version: str, since: str) -> bool:
    return release(version) >= release(since)


def _peers(seen: _Seen) -> Iterator[Outcome]:
    gpus = seen.site.gpus
    if not seen.spec.needs.peer_access or len(gpus) < 2:
        return
    apart = [
        f"GPU {gpu.index} and GPU {gpus[other].index}"
        for gpu in gpus
        for other, reachable in enumerate(gpu.p2p[: len(gpus)])
        if not reachable and other != gpus.index(gpu) and not seen.site.is_multi_node_nvlink
    ]
    without = [f"GPU {gpu.index}" for gpu in gpus if gpu.links and not any(link.startswith("NV") for link in gpu.links)]
    if apart or without:
        what = f"{apart[0]} cannot read each other's memory" if apart else f"{without[0]} has no NVLink to its peers"
        yield Diagnosis(
            "no-p2p",
            f"{seen.spec.name} needs NVLink between the GPUs of a node, but {what}",
            "use alltoall here, or select GPUs that NVLink joins (CUDA_VISIBLE_DEVICES, `nvidia-smi topo -m`)",
        )
    elif any(gpu.p2p or gpu.links for gpu in gpus):
        yield f"{len(gpus)} GPUs reach each other"


def _fabric(seen: _Seen) -> Iterator[Outcome]:
    needs, site = seen.spec.needs, seen.site
    if not needs.fabric_handles or not site.is_multi_node_nvlink or site.declared:
        return
    if seen.environment.get("USE_MNNVL", "").lower() in _FABRIC_OFF:
        yield "USE_MNNVL=0: memory is not shared between nodes"
        return
    unregistered = [gpu.index for gpu in site.gpus if gpu.fabric is not None and gpu.fabric.state != "completed"]
    if unregistered:
        state = next(gpu.fabric.state for gpu in site.gpus if gpu.index == unregistered[0] and gpu.fabric)
        yield Diagnosis(
            "no-fabric-handles",
            f"GPU {unregistered[0]} is not registered with the NVLink fabric (state {state})",
            "start the fabric manager and nvidia-imex on every node; `nvidia-smi -q` shows Fabric State: Completed",
        )
    elif not site.imex_channels:
        yield Diagnosis(
            "no-fabric-handles",
            f"NVLink reaches across nodes here ({site.nvlink_domain} GPUs), but there is no IMEX channel",
            "give the job an IMEX channel (/dev/nvidia-caps-imex-channels), or set USE_MNNVL=0 to stay inside a node",
        )
    else:
        yield f"IMEX channel {site.imex_channels[0]}"


def _compiler(seen: _Seen) -> Iterator[Outcome]:
    variable = seen.spec.needs.compiler
    if not variable or seen.site.device != "cuda":
        return
    problem = try_compiler(variable, seen.capability, seen.environment)
    if problem:
        advice = f"set {variable} to it" if seen.site.nvcc else "install the CUDA toolkit"
        known = f"; {seen.site.nvcc} is there" if seen.site.nvcc and "not set" in problem else ""
        yield Diagnosis(
            "jit-compiler-missing",
            f"{seen.spec.name} compiles its kernels at run time, but {problem}{known}",
            f"{advice} inside the container, at run time as well",
        )
    else:
        yield f"{variable}/bin/nvcc compiles"


def _notes(seen: _Seen) -> Iterator[str]:
    host = seen.report.get("nvshmem_version")
    for since in seen.spec.needs.nvshmem_split:
        source = seen.spec.needs.sources.get("nvshmem_split", "the package that follows it")
        if host and _new(host, since):
            yield (
                f"NVSHMEM {host} orders queue pairs in another way than before {since}: a build without the change of "
                f"{source} stalls in the first dispatch between nodes"
            )


def _numbers(capability: str) -> tuple[int, int]:
    """`9.0` as (9, 0); AMD targets have no such order and give (0, 0)."""
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
