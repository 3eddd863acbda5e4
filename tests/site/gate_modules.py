"""Real broken packages for the gate: laid down in a folder on the path of the child, some with compiled extensions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from moe_dispatch.core.backend import BackendSpec, Consumer, SymbolNeed

NAME = "fake_ep"
GCC = shutil.which("gcc")
needs_gcc = pytest.mark.skipif(GCC is None, reason="needs gcc")


class Stage:
    """A folder of modules, and an interpreter that sees them and nothing else beside the standard library."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "path"
        self.path.mkdir()
        self.python = self.interpreter(folder / "python", "")

    def interpreter(self, where: Path, before: str) -> str:
        """A script that runs this Python without its installed packages, after a shell line."""
        where.write_text(f'#!/bin/sh\n{before}\nPYTHONPATH="{self.path}" exec "{sys.executable}" -S "$@"\n')
        where.chmod(0o755)
        return str(where)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text)

    def package(self, text: str, **more: str) -> None:
        """`fake_ep/__init__.py` with this text, and further modules of the package."""
        self.write({f"{NAME}/__init__.py": text} | {f"{NAME}/{name}.py": body for name, body in more.items()})

    def distribution(self, name: str, version: str, top: str) -> None:
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.write({f"{info}/METADATA": meta, f"{info}/top_level.txt": f"{top}\n"})

    def extension(self, code: str, *flags: str) -> None:
        """A compiled module `fake_ep._C` that `fake_ep` imports."""
        self.package("from fake_ep import _C\n")
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        compile_shared(self.path / NAME / f"_C{suffix}", code, *flags)


def compile_shared(target: Path, code: str, *flags: str) -> None:
    """A shared library, lazily checked by the linker, so that undefined symbols show at load time only."""
    assert GCC is not None
    source = target.with_suffix(".c")
    target.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(code)
    command = [GCC, "-shared", "-fPIC", "-Wl,-z,now", "-o", str(target), str(source), *flags]
    subprocess.run(command, check=True, capture_output=True)


def calling(symbol: str) -> str:
    """C code of an extension that needs a symbol which nobody defines."""
    return f"extern void {symbol}(void);\nvoid *PyInit__C(void) {{ {symbol}(); return 0; }}\n"


def backend(*symbols: str, module: str = NAME, name: str = NAME) -> BackendSpec:
    need = SymbolNeed(module=module, symbols=symbols)
    return BackendSpec(
        name=name,
        title=name,
        summary="made up for a test",
        kind="package",
        consumers=(Consumer(name="trainer", needs=(need,)),),
        install_hint="build fake_ep here",
    )


def is_running(pid: int) -> bool:
    """Whether a process exists that is neither dead nor waiting to be reaped."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
