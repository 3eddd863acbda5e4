"""Versions from package metadata."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest

import moe_dispatch
from moe_dispatch.site.stack import stack_fingerprint


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_versions_of_this_environment() -> None:
    stack = stack_fingerprint()
    assert stack["python"] == platform.python_version()
    assert stack["moe_dispatch"] == moe_dispatch.__version__
    assert stack["kernel"] == platform.release()
    assert stack["numpy"] == metadata.version("numpy")


def test_packages_are_found_by_metadata_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "deep-ep", "1.2.1+9af0e0d")
    install(tmp_path, "megatron-core", "0.19.2")
    install(tmp_path, "nvidia-nccl-cu13", "2.30.7")
    install(tmp_path, "transformer-engine-torch", "2.14.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = set(sys.modules)
    stack = stack_fingerprint()
    assert stack["deep_ep"] == "1.2.1+9af0e0d"
    assert stack["megatron_core"] == "0.19.2"
    assert stack["nccl"] == "2.30.7"
    assert stack["transformer_engine"] == "2.14.0"
    assert {"deep_ep", "megatron"}.isdisjoint(set(sys.modules) - loaded)


def test_a_library_without_a_wheel_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    (tmp_path / "libnccl.so.2.27.5").write_bytes(b"")
    (tmp_path / "libnccl.so.2").symlink_to(tmp_path / "libnccl.so.2.27.5")
    (tmp_path / "libnvshmem_host.so.3").write_bytes(b"")  # a file that does not tell
    stack = stack_fingerprint({"LD_LIBRARY_PATH": str(tmp_path)}, root=tmp_path)
    assert (stack["nccl"], stack["nvshmem"]) == ("2.27.5", None)
    install(tmp_path, "nvidia-nccl-cu13", "2.30.7")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert stack_fingerprint({"LD_LIBRARY_PATH": str(tmp_path)}, root=tmp_path)["nccl"] == "2.30.7"


def test_what_is_absent_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    stack = stack_fingerprint()
    assert stack["torch"] is None
    assert stack["deep_ep"] is None
    assert stack["python"]
