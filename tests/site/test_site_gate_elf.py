"""What a compiled extension says of itself, from files that gcc and nvcc write."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gate_binaries import ARCH_SPECIFIC, CUBIN, FAMILY, PTX, container, nvshmem_device, with_device_code
from gate_modules import compile_shared, needs_gcc

from moe_dispatch.site.gate_elf import Architecture, read_binary

NVCC = shutil.which("nvcc")


def architectures(path: Path) -> list[str]:
    binary = read_binary(path)
    assert binary is not None
    return [str(each) for each in binary.architectures]


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        (Architecture(9, 0), (9, 0), True),
        (Architecture(9, 0), (10, 0), False),
        (Architecture(8, 0), (8, 6), True),
        (Architecture(8, 6), (8, 0), False),
        (Architecture(9, 0, "a"), (9, 0), True),
        (Architecture(10, 0, "a"), (10, 3), False),
        (Architecture(10, 0, "f"), (10, 3), True),
        (Architecture(10, 0, "f"), (12, 0), False),
        (Architecture(8, 0, ptx=True), (12, 0), True),
        (Architecture(9, 0, ptx=True), (8, 0), False),
        (Architecture(9, 0, "a", ptx=True), (10, 0), False),
    ],
)
def test_which_gpu_runs_an_architecture(architecture: Architecture, capability: tuple[int, int], runs: bool) -> None:
    assert architecture.runs_on(capability) is runs


@needs_gcc
def test_architectures_are_read_from_the_containers(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    one = container((CUBIN, 90, ARCH_SPECIFIC), (CUBIN, 100, FAMILY), (CUBIN, 103, 0), (PTX, 120, 0))
    with_device_code(library, [one])
    assert architectures(library) == ["9.0a", "10.0f", "10.3", "12.0+PTX"]


@needs_gcc
def test_what_a_linked_in_library_serves_is_not_what_the_package_serves(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    own = [container((CUBIN, 90, 0), (CUBIN, 100, 0))] * 3
    with_device_code(library, [*own, container((CUBIN, 75, 0), (CUBIN, 90, 0))])
    assert architectures(library) == ["9.0", "10.0"]


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ("arch=compute_90,code=sm_90", "9.0"),
        ("arch=compute_90a,code=sm_90a", "9.0a"),
        ("arch=compute_80,code=compute_80", "8.0+PTX"),
    ],
)
def test_architectures_of_what_nvcc_writes(tmp_path: Path, generation: str, expected: str) -> None:
    source, library = tmp_path / "k.cu", tmp_path / "k.so"
    source.write_text('__global__ void k(int *a) { a[0] = 1; }\nextern "C" void f(int *a) { k<<<1, 1>>>(a); }\n')
    command = [str(NVCC), "-shared", "-Xcompiler", "-fPIC", "-gencode", generation, "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    assert expected in architectures(library)


@needs_gcc
def test_nvshmem_and_libraries(tmp_path: Path) -> None:
    compile_shared(tmp_path / "libcudart.so", "void cudart(void) {}\n", "-Wl,-soname,libcudart.so.13")
    code = nvshmem_device("3.4.5") + "extern void cudart(void);\nvoid f(void) { cudart(); }\n"
    with_device_code(tmp_path / "ext.so", [container((CUBIN, 90, 0))], code, f"-L{tmp_path}", "-lcudart")
    binary = read_binary(tmp_path / "ext.so")
    assert binary is not None
    assert (binary.nvshmem_device, binary.cuda_major) == ("3.4.5", 13)
    assert "libcudart.so.13" in binary.needed


@needs_gcc
def test_a_file_without_device_code(tmp_path: Path) -> None:
    compile_shared(tmp_path / "plain.so", "int x = 1;\n")
    binary = read_binary(tmp_path / "plain.so")
    assert binary is not None
    assert (binary.architectures, binary.nvshmem_device, binary.cuda_major) == ((), None, None)


def test_what_is_no_elf_file(tmp_path: Path) -> None:
    for content in (b"", b"text", b"\x7fELF\x02\x01" + b"\xff" * 100):
        (tmp_path / "file").write_bytes(content)
        assert read_binary(tmp_path / "file") is None
    assert read_binary(tmp_path / "absent") is None


def test_a_truncated_file_is_none_or_partial_and_never_raises(tmp_path: Path) -> None:
    whole = Path(sys.executable).resolve().read_bytes()
    for size in (64, 1000, len(whole) // 2, len(whole) - 100):
        (tmp_path / "cut").write_bytes(whole[:size])
        binary = read_binary(tmp_path / "cut")
        assert binary is None or binary.architectures == ()
