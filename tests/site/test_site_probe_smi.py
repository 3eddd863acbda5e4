"""nvidia-smi's texts as GPUs: as drivers of several ages and machines print them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import tool

from moe_dispatch.site.probe_smi import FIELDS, add_matrix, add_report, parse_query, probe_smi

TRAY = """\
0, NVIDIA GB200, GPU-11111111-2222-3333-4444-000000000000, 00000008:01:00.0, 189471, 580.82.07, 10.0, Disabled
1, NVIDIA GB200, GPU-11111111-2222-3333-4444-000000000001, 00000009:01:00.0, 189471, 580.82.07, 10.0, Disabled
2, NVIDIA GB200, GPU-11111111-2222-3333-4444-000000000002, 00000018:01:00.0, 189471, 580.82.07, 10.0, Disabled
3, NVIDIA GB200, GPU-11111111-2222-3333-4444-000000000003, 00000019:01:00.0, 189471, 580.82.07, 10.0, Disabled
"""
ADDRESSES = ("00000008:01:00.0", "00000009:01:00.0", "00000018:01:00.0", "00000019:01:00.0")
CLUSTER = "6f2ab0d4-5bd5-4a63-8a4a-9b1f2f8d1c11"
HEALTHY = """<health>
  <bandwidth>Full</bandwidth>
  <route_recovery_in_progress>False</route_recovery_in_progress>
  <route_unhealthy>False</route_unhealthy>
  <access_timeout_recovery>False</access_timeout_recovery>
</health>"""
MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tNODE\tSYS\t0-71\t0,2-17\t2
GPU1\tNV18\t X \tNV18\tNV18\tNODE\tSYS\t0-71\t0,2-17\t10
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tNODE\t72-143\t1,18-33\t18
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tNODE\t72-143\t1,18-33\t26
NIC0\tNODE\tNODE\tSYS\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tSYS\tNODE\tNODE\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def report(fabric: str, addresses: tuple[str, ...] = ADDRESSES) -> str:
    gpus = "".join(f'<gpu id="{address}"><fabric>{fabric}</fabric></gpu>' for address in addresses)
    return (
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log>'
        f"<driver_version>580.82.07</driver_version><cuda_version>13.0</cuda_version>{gpus}</nvidia_smi_log>"
    )


def tray() -> tuple[str, str]:
    joined = (
        "<state>Completed</state><status>Success</status><cliqueId>32766</cliqueId>"
        f"<clusterUuid>{CLUSTER.upper()}</clusterUuid>"
    )
    return TRAY, report(joined + HEALTHY)


def test_a_tray_of_an_nvl72_rack() -> None:
    query, text = tray()
    found = add_matrix(add_report(parse_query(query, FIELDS), text), MATRIX)
    assert (found.driver, found.cuda, len(found.gpus)) == ("580.82.07", "13.0", 4)
    third = found.gpus[2]
    assert (third.name, third.pci, third.capability) == ("NVIDIA GB200", "0018:01:00.0", "10.0")
    assert (third.memory_bytes, third.nvlinks) == (189471 * 2**20, 18)
    assert third.links == ("NV18", "NV18", "X", "NV18")
    assert third.fabric is not None
    assert (third.fabric.state, third.fabric.status, third.fabric.problems) == ("completed", "success", ())
    assert third.fabric.domain == f"{CLUSTER}.32766"


@pytest.mark.parametrize(
    ("fabric", "state", "status", "domain"),
    [
        ("<state>In Progress</state><status>N/A</status>", "in_progress", "", None),
        # as on Azure/azhpc-images#506
        (
            "<state>Completed</state><status>Insufficient Resources</status><cliqueId>0</cliqueId>"
            "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>",
            "completed",
            "insufficient resources",
            None,
        ),
        ("<state>N/A</state><status>N/A</status>", "not_supported", "", None),
        ("<state>Not Supported</state>", "not_supported", "", None),
        ("<state>Requested</state>", "unknown", "", None),
        # NVLink switches of one board: registered, but in no cluster of several nodes
        (
            "<state>Completed</state><status>Success</status><cliqueId>0</cliqueId>"
            "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>",
            "completed",
            "success",
            None,
        ),
    ],
)
def test_states_of_the_fabric(fabric: str, state: str, status: str, domain: str | None) -> None:
    found = add_report(parse_query(TRAY, FIELDS), report(fabric)).gpus[0].fabric
    assert found is not None
    assert (found.state, found.status, found.domain) == (state, status, domain)


def test_a_health_report_that_complains() -> None:
    bad = HEALTHY.replace("Full", "Degraded").replace("<route_unhealthy>False", "<route_unhealthy>True")
    found = add_report(parse_query(TRAY, FIELDS), report(f"<state>Completed</state>{bad}")).gpus[0].fabric
    assert found is not None
    assert found.problems == ("bandwidth degraded", "route unhealthy true")


def test_values_that_are_not_available_stay_unknown() -> None:
    line = "0, NVIDIA GB10, GPU-1, 0000000F:01:00.0, [N/A], 580.1, [Not Supported], [N/A]"
    gpu = parse_query(f"Failed to initialize NVML: Driver/library version mismatch\n{line}\n\n", FIELDS).gpus[0]
    assert (gpu.memory_bytes, gpu.capability, gpu.mig) == (None, None, False)


def test_a_gpu_in_instances() -> None:
    gpu = parse_query(TRAY.replace("Disabled", "Enabled"), FIELDS).gpus[0]
    assert gpu.mig


@pytest.mark.parametrize("text", ["", "not xml", "<nvidia_smi_log><gpu></gpu></nvidia_smi_log>", "<a", "<gpu id='x'/>"])
def test_a_report_that_is_none_changes_nothing(text: str) -> None:
    found = parse_query(TRAY, FIELDS)
    assert [gpu.fabric for gpu in add_report(found, text).gpus] == [None] * 4
    assert add_report(found, text).driver == "580.82.07"


@pytest.mark.parametrize("text", ["", "GPU0", "\tGPU0\nGPU0\t X ", "Unable to get the topology", "\t\t\n\t"])
def test_a_matrix_that_does_not_fit_the_gpus_is_left_out(text: str) -> None:
    assert [gpu.links for gpu in add_matrix(parse_query(TRAY, FIELDS), text).gpus] == [()] * 4


def test_a_driver_that_does_not_know_a_field_is_asked_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "0, NVIDIA A100-SXM4-80GB, GPU-1, 00000000:07:00.0, 81251, 470.82.01"
    tool(
        tmp_path,
        monkeypatch,
        f'case "$*" in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2;; '
        f'*query-gpu*) echo "{old}";; -q*) echo "{report("").replace(chr(34), chr(39))}";; *) exit 1;; esac',
    )
    found = probe_smi(10)
    assert [(gpu.name, gpu.capability) for gpu in found.gpus] == [("NVIDIA A100-SXM4-80GB", None)]
    assert (found.driver, found.cuda) == ("470.82.01", "13.0")
