"""The NVML child against a made-up pynvml: what it prints, and that a bad driver stays in the child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import write

from moe_dispatch.site import probe_nvml
from moe_dispatch.site.probe import probe
from moe_dispatch.site.probe_gpu import parse_nvml

PYNVML = """
import ctypes
from types import SimpleNamespace as S

CLUSTER = bytes(range(16))
COUNT, SWITCHED, MASK = 4, True, 0xAA

class NVMLError(Exception):
    pass

class c_nvmlGpuFabricInfo_v2_t(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("clusterUuid", ctypes.c_char * 16), ("status", ctypes.c_uint),
                ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_uint), ("healthMask", ctypes.c_uint32)]

def nvmlInit(): pass
def nvmlDeviceGetCount(): return COUNT
def nvmlDeviceGetHandleByIndex(i): return S(i=i)
def nvmlSystemGetDriverVersion(): return b"580.82.07"
def nvmlSystemGetCudaDriverVersion(): return 13000
def nvmlDeviceGetName(h): return b"NVIDIA GB200"
def nvmlDeviceGetUUID(h): return f"GPU-{h.i}"
def nvmlDeviceGetPciInfo(h): return S(busId=f"0000000{h.i}:01:00.0".encode())
def nvmlDeviceGetMemoryInfo(h): return S(total=198_642_237_440)
def nvmlDeviceGetCudaComputeCapability(h): return (10, 0)
def nvmlDeviceGetNumGpuCores(h): return 152 * 128
def nvmlDeviceGetMigMode(h): raise NVMLError("Not Supported")
def nvmlDeviceGetNvLinkState(h, lane):
    if lane >= 18: raise NVMLError("Invalid Argument")
    return 1
def nvmlDeviceGetP2PStatus(a, b, kind): return 0
def nvmlDeviceGetNvLinkRemotePciInfo(h, lane):
    if SWITCHED: return S(busId=b"00000000:AA:00.0")
    return S(busId=f"0000000{lane % COUNT}:01:00.0".encode())
def nvmlDeviceGetTopologyCommonAncestor(a, b): return 40
def nvmlDeviceGetGpuFabricInfoV(h, pointer):
    info = pointer._obj
    ctypes.memmove(ctypes.addressof(info) + type(info).clusterUuid.offset, CLUSTER, 16)
    info.status, info.cliqueId, info.state, info.healthMask = 0, 7, 3, MASK
"""


def run(folder: Path, source: str = PYNVML) -> subprocess.CompletedProcess[str]:
    write(folder, "pynvml.py", source)
    return subprocess.run(
        [sys.executable, probe_nvml.__file__],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_tray_of_an_nvl72_rack(tmp_path: Path) -> None:
    found = parse_nvml(run(tmp_path).stdout)
    assert (found.driver, found.cuda, len(found.gpus)) == ("580.82.07", "13.0", 4)
    gpu = found.gpus[2]
    assert (gpu.name, gpu.uuid, gpu.pci, gpu.capability, gpu.sms) == (
        "NVIDIA GB200",
        "GPU-2",
        "0002:01:00.0",
        "10.0",
        152,
    )
    assert (gpu.nvlinks, gpu.links, gpu.p2p, gpu.mig) == (18, ("NV18", "NV18", "X", "NV18"), (True,) * 4, False)
    assert gpu.fabric is not None
    # the cluster starts with a zero byte, at which text fields end
    assert gpu.fabric.domain == "00010203-0405-0607-0809-0a0b0c0d0e0f.7"
    assert gpu.fabric.problems == ()  # 0xAA answers no to each of the four questions


def test_gpus_that_are_wired_to_each_other(tmp_path: Path) -> None:
    found = parse_nvml(run(tmp_path, PYNVML.replace("SWITCHED, MASK = 4, True", "SWITCHED, MASK = 4, False")).stdout)
    assert found.gpus[0].links == ("X", "NV9", "NV9", "NV9")  # lanes 0 to 35 in turn to four GPUs


def test_gpus_without_nvlink(tmp_path: Path) -> None:
    found = parse_nvml(run(tmp_path, PYNVML.replace("return 0\n", "return 5\n")).stdout)
    assert found.gpus[0].links == ("X", "NODE", "NODE", "NODE")
    assert found.gpus[0].p2p == (True, False, False, False)


def test_a_health_mask_that_complains(tmp_path: Path) -> None:
    found = parse_nvml(run(tmp_path, PYNVML.replace("0xAA", "0x4A9")).stdout)
    assert found.gpus[0].fabric is not None
    assert found.gpus[0].fabric.problems == ("degraded bandwidth", "no partition")


def test_an_old_driver_without_fabric(tmp_path: Path) -> None:
    found = parse_nvml(run(tmp_path, PYNVML.replace("def nvmlDeviceGetGpuFabricInfoV", "def unused")).stdout)
    assert found.gpus[0].fabric is None


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"gpus": [{"index": "x"}]}', '{"gpus": 3}'])
def test_a_damaged_document_is_no_gpu(text: str | None) -> None:
    assert parse_nvml(text).gpus == ()


@pytest.mark.parametrize(
    "init", ["raise NVMLError('driver not loaded')", "import os; os.abort()", "import time; time.sleep(600)"]
)
def test_a_bad_driver_stays_in_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str) -> None:
    write(tmp_path, "pynvml.py", PYNVML.replace("def nvmlInit(): pass", f"def nvmlInit(): {init}"))
    write(tmp_path, "dev/nvidiactl")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    site = probe(root=tmp_path, environment={}, timeout_s=1.5)
    assert site.device == "cpu"
    assert "NVML gave no GPU" in site.notes[0]


def test_the_probe_prefers_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "pynvml.py", PYNVML)
    write(tmp_path, "dev/nvidiactl")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    site = probe(root=tmp_path, environment={})
    assert (site.gpu, site.gpus_per_node, site.nvlink_domain, site.cuda) == ("gb200", 4, 72, "13.0")
    assert site.domain_of(3) == "00010203-0405-0607-0809-0a0b0c0d0e0f.7"
    assert json.loads(site.model_dump_json())["gpus"][0]["fabric"]["clique"] == 7
