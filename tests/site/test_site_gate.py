"""The gate around its child process: what it reports, what it leaves behind, several backends at once."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gate_modules import NAME, Stage, backend, is_running

from moe_dispatch.core.backend import BackendSpec, Consumer, SymbolNeed
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import load_backends
from moe_dispatch.site.gate import gate, gate_all

FAKE_TORCH = {"torch/__init__.py": "", "torch/distributed.py": "all_to_all_single = init_process_group = print\n"}
PATIENCE_S = 20.0
"""How long a process that was killed may take to vanish on a busy machine."""


def builtin(name: str, target: str | None = None) -> BackendSpec:
    return BackendSpec(name=name, title=name, summary="made up", kind="builtin", target=target)


def wait_for_pid(path: Path) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


def ends(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_a_package_that_imports(stage: Stage) -> None:
    stage.package("class Buffer: pass\n")
    stage.distribution("fake-ep-wheel", "1.2.1+abc", NAME)
    result = gate(backend("Buffer"), python=stage.python)
    assert (result.available, result.level_reached, result.reason_class, result.reason) == (True, "imports", "", "")
    assert (result.provider, result.version) == ("fake-ep-wheel", "1.2.1+abc")
    assert result.file == str(stage.path / NAME / "__init__.py")
    assert result.consumer == "trainer"
    assert NAME not in sys.modules


def test_a_symbol_may_be_a_submodule(stage: Stage) -> None:
    stage.package("", kernels="fast = 1\n")
    assert gate(backend("kernels"), python=stage.python).available
    assert gate(backend("fast", module=f"{NAME}.kernels"), python=stage.python).available


def test_what_a_module_does_at_exit_is_not_under_test(stage: Stage) -> None:
    stage.package("import atexit, os\natexit.register(os.abort)\n")
    assert gate(backend(), python=stage.python).available


def test_the_consumer_decides_what_is_imported(stage: Stage) -> None:
    stage.package("Old = 1\n")
    ours = Consumer(name="ours", needs=(SymbolNeed(module=NAME, symbols=("Old",)),))
    theirs = Consumer(name="theirs", needs=(SymbolNeed(module=NAME, symbols=("New",)),))
    spec = backend().model_copy(update={"consumers": (ours, theirs)})
    assert gate(spec, python=stage.python).available
    assert gate(spec, "theirs", python=stage.python).reason_class == "missing-feature"
    with pytest.raises(UsageError, match="'nobody'") as caught:
        gate(spec, "nobody", python=stage.python)
    assert "ours, theirs" in caught.value.fix


def test_secrets_do_not_reach_the_result(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "correct-horse-battery")
    stage.package(
        "import os\nprint(os.environ['WANDB_API_KEY'], 'https://user:pass-word-1@mirror/simple')\n"
        "raise ValueError(os.environ['WANDB_API_KEY'])"
    )
    result = gate(backend(), python=stage.python)
    assert result.reason_class == "other"
    assert "***@mirror/simple" in result.detail
    dumped = result.model_dump_json()
    assert "correct-horse-battery" not in dumped
    assert "pass-word-1" not in dumped


def test_a_long_message_is_cut(stage: Stage) -> None:
    stage.package("raise ValueError('y' * 1_000_000)\n")
    result = gate(backend(), python=stage.python)
    assert result.reason_class == "other"
    assert len(result.reason) < 1_000
    assert "yyy" in result.reason


def test_much_output_is_cut_to_its_end(stage: Stage) -> None:
    stage.package("print('x' * 3_000_000)\nprint('the end')\n")
    result = gate(backend(), python=stage.python)
    assert result.available
    assert result.detail.endswith("the end")
    assert len(result.detail) < 10_000


def test_processes_that_a_module_started_end_with_it(stage: Stage, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    stage.package(
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n"
    )
    assert gate(backend(), python=stage.python, timeout_s=2).reason_class == "init-timeout"
    assert ends(wait_for_pid(pid_file))


def test_a_stricter_limit_stays(stage: Stage, tmp_path: Path) -> None:
    """Without root a hard limit cannot be raised, and trying would end the child."""
    stage.package("import resource\nprint('limit', resource.getrlimit(resource.RLIMIT_DATA))\n")
    python = stage.interpreter(tmp_path / "limited", "ulimit -d 3000000")
    result = gate(backend(), python=python)
    assert result.available
    assert "limit (3072000000, 3072000000)" in result.detail


def test_the_working_folder_counts_as_it_does_for_ranks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source checkout in the working folder hides the installed package from `python -m`, hence from the ranks."""
    stage.package("class Buffer: pass\n")
    checkout = stage.path.parent / "checkout"
    (checkout / NAME).mkdir(parents=True)
    (checkout / NAME / "__init__.py").write_text("raise ImportError('not built')\n")
    monkeypatch.chdir(checkout)
    assert "not built" in gate(backend("Buffer"), python=stage.python).reason
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    if sys.version_info >= (3, 11):
        assert gate(backend("Buffer"), python=stage.python).available


def test_safe_path_mode_keeps_the_path(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    stage.package("")
    assert gate(backend(), python=stage.python).available


def test_modules_of_this_package_do_not_shadow_a_backend(stage: Stage) -> None:
    """The child script lies beside `stack.py`; a backend that is called `stack` must not be mistaken for it."""
    result = gate(backend(module="stack"), python=stage.python)
    assert result.reason_class == "not-installed"


@pytest.mark.parametrize(
    ("python", "part"), [("/nowhere/python", "/nowhere/python"), ("/bin/true", "did not run the gate")]
)
def test_an_interpreter_that_is_none(python: str, part: str) -> None:
    result = gate(backend(), python=python)
    assert (result.reason_class, result.available) == ("other", False)
    assert part in result.reason
    assert result.fix


def test_a_specification_without_imports_proves_nothing(stage: Stage) -> None:
    spec = backend().model_copy(update={"consumers": ()})
    assert not gate(spec, python=stage.python).available


def test_built_in_backends_need_torch_only(stage: Stage) -> None:
    absent = gate(builtin("ring"), python=stage.python)
    assert (absent.reason_class, absent.reason) == ("not-installed", "torch is not installed")
    assert "moe-dispatch[torch]" in absent.fix
    stage.write(FAKE_TORCH)
    assert gate(builtin("ring"), python=stage.python).available


def test_gate_all_keeps_the_order_and_no_backend_harms_another(stage: Stage) -> None:
    stage.write(FAKE_TORCH)
    stage.package("class Buffer: pass\n")
    stage.write({"abort_ep.py": "import os; os.abort()", "hang_ep.py": "import time; time.sleep(600)"})
    specs = [
        backend(module="abort_ep", name="abort"),
        builtin("ring"),
        backend(module="hang_ep", name="hang"),
        builtin("broken", target="nowhere_to_be_found:Dispatcher"),
        backend("Buffer", name="good"),
        backend(module="absent_ep", name="absent"),
    ]
    results = gate_all(specs, timeout_s=4, python=stage.python)
    assert list(results) == [spec.name for spec in specs]
    assert {name: result.reason_class for name, result in results.items()} == {
        "abort": "crashed",
        "ring": "",
        "hang": "init-timeout",
        "broken": "not-installed",
        "good": "",
        "absent": "not-installed",
    }
    assert all(result.backend == name for name, result in results.items())


def test_gate_all_bounds_its_children(stage: Stage, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    body = (
        "import os, time, pathlib\n"
        f"folder = pathlib.Path({str(seen)!r})\n"
        "mine = folder / f'{os.getpid()}.running'\nmine.touch()\ntime.sleep(0.2)\n"
        "print('together', len(list(folder.glob('*.running'))))\nmine.unlink()\n"
    )
    stage.write({f"slow{index}.py": body for index in range(5)})
    specs = [backend(module=f"slow{index}", name=f"slow{index}") for index in range(5)]
    results = gate_all(specs, python=stage.python, workers=2)
    counts = [int(result.detail.split()[-1]) for result in results.values()]
    assert len(counts) == 5
    assert max(counts) <= 2


def test_an_interrupt_leaves_no_child(stage: Stage, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    stage.package(f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gate_modules import backend\nfrom moe_dispatch.site.gate import gate_all\n"
        "gate_all([backend()], python=sys.argv[2])\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), stage.python]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        child = wait_for_pid(pid_file)
        os.kill(parent.pid, signal.SIGINT)
        assert parent.wait(PATIENCE_S) != 0
    finally:
        parent.kill()
        parent.wait()
    assert ends(child)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_our_own_dispatchers_pass_in_this_environment() -> None:
    specs = [spec for spec in load_backends().values() if spec.kind == "builtin"]
    results = gate_all(specs)
    assert {name: result.reason for name, result in results.items() if not result.available} == {}
    assert {result.provider for result in results.values()} == {"torch"}
    assert "alltoall" in results
