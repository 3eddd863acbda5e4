"""The level `supported`: real libraries in a real child process; the GPU, its driver and its links are declared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from gate_binaries import CUBIN, compiler, container, machine, nccl, nvshmem_device, nvshmem_host, with_device_code
from gate_modules import NAME, Stage, backend, compile_shared, needs_gcc

from moe_dispatch.core.backend import BackendSpec, PackageNeeds
from moe_dispatch.site.devices import Gpu, GpuFabric
from moe_dispatch.site.gate import gate
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.gate_support import check_support
from moe_dispatch.site.model import Site


def needing(**needs: object) -> BackendSpec:
    return backend().model_copy(update={"needs": PackageNeeds.model_validate(needs), "platforms": ("cuda",)})


def ask(stage: Stage, spec: BackendSpec, site: Site | None = None) -> GateResult:
    return gate(spec, python=stage.python, site=site or machine())


def level(result: GateResult) -> tuple[str, str]:
    found = result.level("supported")
    assert found is not None
    return found.state, found.reason


def test_nothing_is_needed(stage: Stage) -> None:
    stage.package("")
    result = ask(stage, needing())
    assert (result.level_reached, result.available, level(result)[0]) == ("supported", True, "passed")
    above = result.level("initialises")
    assert above is not None
    assert (above.state, above.reason) == ("not-run", "no adapter in this release")


def test_a_machine_that_nobody_looked_at(stage: Stage) -> None:
    stage.package("")
    assert level(gate(needing(), python=stage.python)) == ("not-run", "the machine was not looked at")


def test_without_a_gpu_the_level_is_not_run(stage: Stage) -> None:
    stage.package("")
    result = ask(stage, needing(), Site(name="m", declared=False, device="cpu"))
    assert level(result) == ("not-run", "needs a GPU")
    assert (result.available, result.level_reached) == (True, "imports")


@needs_gcc
@pytest.mark.parametrize(("capability", "expected"), [("9.0", ""), ("10.0", "wrong-sm-arch"), ("8.0", "wrong-sm-arch")])
def test_the_binary_must_hold_code_for_this_gpu(stage: Stage, capability: str, expected: str) -> None:
    stage.package("")
    with_device_code(stage.path / NAME / "kernels.so", [container((CUBIN, 90, 0))])
    result = ask(stage, needing(binaries=(NAME,)), machine(capability))
    assert result.reason_class == expected, result
    assert result.architectures == ("9.0",)
    if expected:
        assert (result.level_reached, result.status) == ("imports", "broken")
        assert result.fix == f"rebuild with TORCH_CUDA_ARCH_LIST including {capability}"


@needs_gcc
def test_one_library_for_each_cuda_is_enough(stage: Stage) -> None:
    stage.package("")
    for folder, arch in (("cu12", 90), ("cu13", 100)):
        with_device_code(stage.path / NAME / folder / "lib.so", [container((CUBIN, arch, 0))])
    assert ask(stage, needing(binaries=(NAME,)), machine("10.0")).available


def test_a_gpu_that_is_too_old(stage: Stage) -> None:
    stage.package("")
    result = ask(stage, needing(capability_min="9.0"), machine("8.6"))
    assert result.reason_class == "unsupported-gpu"
    assert ask(stage, needing(capability_min="9.0"), machine("10.0")).available


@needs_gcc
@pytest.mark.parametrize(("version", "expected"), [("2.28.9", "nccl-too-old"), ("2.30.4", ""), ("2.31.0", "")])
def test_the_nccl_that_is_loaded(stage: Stage, version: str, expected: str) -> None:
    library = stage.path / "libnccl.so.2"
    compile_shared(library, nccl(version))
    stage.package(f"import ctypes\nctypes.CDLL({str(library)!r})\n")
    result = ask(stage, needing(nccl_min="2.30.4"))
    assert result.reason_class == expected, result
    if expected:
        assert f"needs NCCL 2.30.4 or newer; {version} is loaded from {library}" in result.reason


@pytest.mark.parametrize(("version", "expected"), [("2.28.9", "nccl-too-old"), ("2.30.7", "")])
def test_the_nccl_wheel_where_nothing_loaded_it_yet(
    stage: Stage, version: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    stage.package("")
    stage.distribution("nvidia-nccl-cu13", version, "nvidia")
    assert ask(stage, needing(nccl_min="2.30.4")).reason_class == expected


@needs_gcc
def test_two_nccl_copies_that_a_package_takes_without_complaint(stage: Stage) -> None:
    loads = ""
    for index in range(2):
        library = stage.path / f"copy{index}" / "libnccl.so.2"
        compile_shared(library, nccl("2.30.4"))
        loads += f"ctypes.CDLL({str(library)!r})\n"
    stage.package(f"import ctypes\n{loads}")
    result = ask(stage, needing(nccl_min="2.30.4"))
    assert result.reason_class == "two-nccl-copies"
    assert "copy0/libnccl.so.2" in result.reason
    assert ask(stage, needing()).available


@needs_gcc
@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        ("3.4.5", "3.6.5", "nvshmem-split"),
        ("3.6.5", "3.4.5", "nvshmem-split"),
        ("3.4.5", "3.4.5", ""),
        ("3.6.0", "3.7.0", ""),
    ],
)
def test_device_and_host_side_of_nvshmem(stage: Stage, device: str, host: str, expected: str) -> None:
    """NVIDIA-NeMo/Automodel#2614: device code of 3.4.5 with the host library of 3.6.5."""
    library = stage.path / "libnvshmem_host.so.3"
    compile_shared(library, nvshmem_host(host))
    stage.package(f"import ctypes\nctypes.CDLL({str(library)!r})\n")
    compile_shared(stage.path / NAME / "kernels.so", nvshmem_device(device))
    result = ask(stage, needing(binaries=(NAME,), nvshmem_split=("3.5.19",)))
    assert result.reason_class == expected, result
    assert any("queue pairs" in note for note in result.notes) is (host > "3.5.19")


STUBS = [
    ("echo 'no licence' >&2; exit 3", "no licence"),
    ("exit 0", "does not compile an empty kernel (status 0)"),
    ("kill -SEGV $$", "status -11"),
]


@pytest.mark.parametrize(("script", "part"), STUBS)
def test_a_compiler_that_fails(tmp_path: Path, script: str, part: str) -> None:
    support = check_support(
        needing(compiler="CUDA_HOME"), machine(), {}, {"CUDA_HOME": compiler(tmp_path / "c", script)}
    )
    (failure,) = support.failures
    assert failure.reason_class == "jit-compiler-missing"
    assert part in failure.reason


def test_a_compiler_that_works(tmp_path: Path) -> None:
    home = compiler(tmp_path / "c", 'while [ "$1" != -o ]; do shift; done; echo cubin > "$2"')
    support = check_support(needing(compiler="CUDA_HOME"), machine(), {}, {"CUDA_HOME": home})
    assert support.failures == ()
    assert "CUDA_HOME/bin/nvcc compiles" in support.evidence


@pytest.mark.parametrize(
    ("environment", "part"),
    [({}, "CUDA_HOME is not set; /opt/nvcc is there"), ({"CUDA_HOME": "/nowhere"}, "/nowhere/bin/nvcc")],
)
def test_no_compiler(environment: Mapping[str, str], part: str) -> None:
    support = check_support(needing(compiler="CUDA_HOME"), machine(nvcc="/opt/nvcc"), {}, environment)
    assert part in support.failures[0].reason


@pytest.mark.parametrize(("offered", "expected"), [("12.8", "driver-too-old"), ("13.0", ""), ("13.2", "")])
def test_the_driver_and_the_cuda_of_torch(offered: str, expected: str) -> None:
    support = check_support(needing(), machine(cuda=offered, driver="570.1"), {"torch_cuda": "13.0"}, {})
    assert [failure.reason_class for failure in support.failures] == ([expected] if expected else [])


def test_the_forward_compatible_libcuda_serves_a_newer_cuda(tmp_path: Path) -> None:
    (tmp_path / "cuda" / "compat" / "lib").mkdir(parents=True)
    (tmp_path / "cuda" / "compat" / "lib" / "libcuda.so.1").touch()
    environment = {"LD_LIBRARY_PATH": str(tmp_path / "cuda" / "compat" / "lib")}
    support = check_support(needing(), machine(cuda="12.8"), {"torch_cuda": "13.0"}, environment)
    assert support.failures == ()
    assert "forward-compatible" in support.evidence[0]


def test_what_needs_torch_only_is_told_and_not_refused() -> None:
    alltoall = needing().model_copy(update={"kind": "builtin"})
    support = check_support(alltoall, machine(cuda="12.8"), {"torch_cuda": "13.0"}, {})
    assert support.failures == ()
    assert "serves CUDA 12.8" in support.notes[0]


@needs_gcc
def test_a_package_for_another_cuda_than_torch(tmp_path: Path) -> None:
    compile_shared(tmp_path / "libcudart.so", "void cudart(void) {}\n", "-Wl,-soname,libcudart.so.12")
    compile_shared(
        tmp_path / "ext.so", "extern void cudart(void);\nvoid f(void) { cudart(); }\n", f"-L{tmp_path}", "-lcudart"
    )
    report = {"torch_cuda": "13.0", "binaries": [str(tmp_path / "ext.so")]}
    (failure,) = check_support(needing(), machine(), report, {}).failures
    assert (failure.reason_class, failure.reason) == (
        "wrong-cuda-major",
        "ext.so was built for CUDA 12, torch for CUDA 13.0",
    )


def pair(links: tuple[str, str], p2p: bool) -> Site:
    gpus = (
        Gpu(index=0, name="g", capability="9.0", links=("X", links[0]), p2p=(True, p2p)),
        Gpu(index=1, name="g", capability="9.0", links=(links[1], "X"), p2p=(p2p, True)),
    )
    return machine(gpus=gpus, gpus_per_node=2)


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        (pair(("NV18", "NV18"), True), []),
        (pair(("PIX", "PIX"), True), ["no-p2p"]),
        (pair(("NV4", "NV4"), False), ["no-p2p"]),
    ],
)
def test_gpus_that_do_not_reach_each_other(site: Site, expected: list[str]) -> None:
    support = check_support(needing(peer_access=True), site, {}, {})
    assert [failure.reason_class for failure in support.failures] == expected
    assert not check_support(needing(), site, {}, {}).failures


def rack(state: str, channels: tuple[str, ...]) -> Site:
    fabric = GpuFabric.model_validate({"state": state, "cluster": "c", "clique": 1})
    gpu = Gpu(index=0, name="g", capability="10.0", fabric=fabric)
    return machine(gpus=(gpu,), gpus_per_node=4, nvlink_domain=72, imex_channels=channels)


@pytest.mark.parametrize(
    ("site", "environment", "expected"),
    [
        (rack("completed", ("channel0",)), {}, []),
        (rack("completed", ()), {}, ["no-fabric-handles"]),
        (rack("in_progress", ("channel0",)), {}, ["no-fabric-handles"]),
        (rack("completed", ()), {"USE_MNNVL": "0"}, []),
        (machine(gpus_per_node=8, nvlink_domain=8), {}, []),
    ],
)
def test_memory_between_nodes_needs_a_channel_on_a_rack_only(
    site: Site, environment: Mapping[str, str], expected: list[str]
) -> None:
    support = check_support(needing(fabric_handles=True), site, {}, environment)
    assert [failure.reason_class for failure in support.failures] == expected
