"""Each reason class of the gate, brought about by a real module in a real child process."""

from __future__ import annotations

import shutil

import pytest
from gate_modules import NAME, Stage, backend, calling, compile_shared, needs_gcc

from moe_dispatch.core.registry import get_backend
from moe_dispatch.site.gate import gate
from moe_dispatch.site.gate_result import GateResult

has_cxxfilt = shutil.which("c++filt") is not None


def run(stage: Stage, *symbols: str, module: str = NAME) -> GateResult:
    return gate(backend(*symbols, module=module), python=stage.python, timeout_s=60)


def test_what_does_not_exist_is_not_installed(stage: Stage) -> None:
    result = run(stage, "Buffer")
    assert (result.available, result.level_reached, result.reason_class) == (False, "none", "not-installed")
    assert result.reason == "fake_ep is not installed"
    assert result.fix == "build fake_ep here"


RAISES = [
    # another module is missing: the package itself is there
    ("import nothing_like_this", "missing-library", "needs the module nothing_like_this"),
    # the very text of an absent package, from inside a present one
    ("raise ModuleNotFoundError(\"No module named 'fake_ep'\", name='fake_ep')", "missing-feature", "is installed"),
    ("from fake_ep.kernels import fast", "missing-feature", "no module fake_ep.kernels"),
    ("from math import no_such_function", "missing-feature", "cannot import name 'no_such_function'"),
    # DeepEP's check at import
    (
        "raise AssertionError('Duplicate NCCL runtime found: /a/libnccl.so.2 and /b/libnccl.so.2')",
        "two-nccl-copies",
        "more than one NCCL",
    ),
    (
        "raise AssertionError('Invalid NCCL versions: /a/libnccl.so.2 (loaded) v.s. /b/libnccl.so (expected), please')",
        "two-nccl-copies",
        "/a/libnccl.so.2, because it expects /b/libnccl.so",
    ),
    (
        "raise RuntimeError('NCCL EP requires NCCL >= 2.30.4, found 2.28.9 at runtime. Set LD_LIBRARY_PATH')",
        "nccl-too-old",
        "requires NCCL >= 2.30.4, found 2.28.9",
    ),
    ("raise AssertionError('No libnccl.so found in /opt/nccl/lib/')", "missing-library", "libnccl.so is missing"),
    ("import ctypes; ctypes.CDLL('libnothing_like_this.so.7')", "missing-library", "libnothing_like_this.so.7"),
    ("raise FileNotFoundError('No such file or directory: nvcc')", "jit-compiler-missing", "nvcc is missing"),
    ("cuda_home = None\nassert cuda_home is not None", "jit-compiler-missing", "nvcc is missing"),
    ("import ctypes; ctypes.CDLL('libnvshmem_host.so.99')", "nvshmem-missing", "NVSHMEM's libnvshmem_host.so.99"),
    ("import sys; sys.exit('no GPU here')", "crashed", "SystemExit: no GPU here"),
    ("import os; os._exit(7)", "crashed", "status 7"),
    ("import os; os.abort()", "crashed", "SIGABRT"),
    ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
    ("import os; os.kill(os.getpid(), 9)", "crashed", "SIGKILL"),
    ("raise ValueError('bad build')", "other", "ValueError: bad build"),
    ("class Odd(BaseException): pass\nraise Odd('odd')", "other", "Odd: odd"),
    ("assert 1 > 2  # no message", "other", "raised by `assert 1 > 2"),
    ("class Mute(Exception):\n def __str__(self): raise TypeError\nraise Mute", "other", "Mute"),
    ("def broken(:", "other", "SyntaxError"),
]


@pytest.mark.parametrize(("text", "reason_class", "part"), RAISES)
def test_a_module_that_is_there_but_does_not_import(stage: Stage, text: str, reason_class: str, part: str) -> None:
    stage.package(text)
    result = run(stage, "Buffer")
    assert (result.available, result.level_reached) == (False, "installed")
    assert result.reason_class == reason_class, result
    assert part in result.reason
    assert result.fix


def test_a_symbol_that_is_absent_names_what_there_is(stage: Stage) -> None:
    stage.package("class Buffer: pass\nclass EventOverlap: pass\nhelper = 1\n")
    result = run(stage, "HybridEPBuffer")
    assert result.reason_class == "missing-feature"
    assert result.reason == "fake_ep is installed but has no HybridEPBuffer; it offers Buffer, EventOverlap"


def test_a_crash_keeps_what_was_printed_before_it(stage: Stage) -> None:
    stage.package("print('checking host')\nimport ctypes; ctypes.string_at(0)")
    result = run(stage)
    assert "checking host" in result.detail
    assert "Segmentation fault" in result.detail


def test_a_hang_is_ended(stage: Stage) -> None:
    stage.package("print('waiting for a lock')\nimport time; time.sleep(600)")
    result = gate(backend(), python=stage.python, timeout_s=1.5)
    assert (result.reason_class, result.level_reached) == ("init-timeout", "installed")
    assert "within 1.5 s" in result.reason
    assert "waiting for a lock" in result.detail


@pytest.mark.parametrize(
    "text", ["x = bytearray(2 << 30)", "import os; print('std::bad_alloc', flush=True); os.abort()"]
)
def test_too_much_memory(stage: Stage, text: str) -> None:
    stage.package(text)
    result = gate(backend(), python=stage.python, memory_bytes=512 << 20)
    assert result.reason_class == "out-of-memory", result


SYMBOLS = [
    # deepseek-ai/DeepEP#309
    ("_Z14THPStream_WrapRKN3c106StreamE", "torch-abi-mismatch", "THPStream_Wrap(c10::Stream const&)"),
    ("_ZN3c105ErrorC1ENS_14SourceLocationESs", "torch-abi-mismatch", "c10::Error::Error"),
    # its own symbol takes a tensor, which does not make it torch's: a source file was left out of the build
    ("_ZN7fake_ep5fetchERKN2at6TensorE", "build-incomplete", "fake_ep::fetch(at::Tensor const&)"),
    # deepseek-ai/DeepEP#429
    ("__cudaRegisterLinkedBinary_4a1b", "build-incomplete", "__cudaRegisterLinkedBinary_4a1b"),
    ("ncclDevCommCreate", "nccl-too-old", "ncclDevCommCreate"),
    ("nvshmemx_init_attr", "nvshmem-missing", "nvshmemx_init_attr"),
]


@needs_gcc
@pytest.mark.parametrize(("symbol", "reason_class", "readable"), SYMBOLS)
def test_undefined_symbols(stage: Stage, symbol: str, reason_class: str, readable: str) -> None:
    stage.extension(calling(symbol))
    stage.distribution("torch", "2.99.0+cpu", "torch")
    result = run(stage, "Buffer")
    assert (result.reason_class, result.level_reached) == (reason_class, "installed"), result
    assert (readable if has_cxxfilt else symbol) in result.reason
    if reason_class == "torch-abi-mismatch":
        assert result.fix == "rebuild fake_ep against torch 2.99.0+cpu"


@needs_gcc
def test_an_extension_whose_library_is_gone(stage: Stage) -> None:
    library = stage.path / "libgone.so"
    compile_shared(library, "void gone(void) {}\n")
    stage.extension(calling("gone"), f"-L{stage.path}", "-lgone")
    library.unlink()
    result = run(stage, "Buffer")
    assert (result.reason_class, result.level_reached) == ("missing-library", "installed")
    assert "libgone.so is missing" in result.reason


@needs_gcc
@pytest.mark.parametrize(("copies", "expected"), [(2, "two-nccl-copies"), (1, "other")])
def test_nccl_copies_that_are_mapped_explain_a_failed_check(stage: Stage, copies: int, expected: str) -> None:
    for index in range(2):
        compile_shared(stage.path / f"copy{index}" / "libnccl.so.2", f"int version{index} = 1;\n")
    loads = "".join(f"ctypes.CDLL('{stage.path}/copy{index}/libnccl.so.2')\n" for index in range(copies))
    stage.package(f"import ctypes\n{loads}def check_nccl():\n    assert False\ncheck_nccl()\n")
    result = run(stage, "Buffer")
    assert result.reason_class == expected, result
    if copies == 2:
        assert "copy0/libnccl.so.2" in result.reason
        assert "copy1/libnccl.so.2" in result.reason
        assert "alltoall is not affected" in result.fix


def test_deepep_without_hybridep_is_named(stage: Stage) -> None:
    """NVIDIA-NeMo/Megatron-Bridge#1101: the main branch of DeepEP is there, HybridEP is another branch."""
    stage.write({"deep_ep/__init__.py": "class Buffer: pass\n", "deep_ep/utils.py": "EventHandle = EventOverlap = 1\n"})
    hybrid = gate(get_backend("hybridep"), "megatron-core", python=stage.python)
    assert (hybrid.available, hybrid.reason_class) == (False, "missing-feature")
    assert "has no HybridEPBuffer; it offers Buffer" in hybrid.reason
    assert "hybrid-ep" in hybrid.fix
    assert gate(get_backend("deepep"), "megatron-core", python=stage.python).available


def test_deepep_that_moved_a_symbol_is_not_called_absent(stage: Stage) -> None:
    """Megatron-Core takes EventOverlap from deep_ep.utils; newer DeepEP has it elsewhere."""
    stage.write(
        {"deep_ep/__init__.py": "Buffer = EventOverlap = 1\n", "deep_ep/utils/__init__.py": "EventHandle = 1\n"}
    )
    result = gate(get_backend("deepep"), "megatron-core", python=stage.python)
    assert (result.level_reached, result.reason_class) == ("installed", "missing-feature")
    assert "deep_ep.utils is installed but has no EventOverlap" in result.reason
