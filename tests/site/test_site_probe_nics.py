"""Network adapters and what is near them, from a made-up sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import link, pci_device, rdma_device, write

from moe_dispatch.site.devices import Gpu, Nic
from moe_dispatch.site.pci import pci_address
from moe_dispatch.site.probe_nics import fabric_of, probe_nics, with_nearest

ROOT_PORT = "pci0000:15/0000:15:01.0"
SWITCH = f"{ROOT_PORT}/0000:16:00.0"


def nic(root: Path) -> Nic:
    (found,) = probe_nics(root)
    return found


def test_an_infiniband_adapter(tmp_path: Path) -> None:
    rdma_device(
        tmp_path,
        "mlx5_0",
        f"{SWITCH}/0000:18:00.0",
        interface="ib0",
        numa_node="1",
        vendor="0x15b3",
        device="0x1021",
    )
    found = nic(tmp_path)
    assert (found.name, found.kind, found.rate_gbps, found.active) == ("mlx5_0", "infiniband", 400, True)
    assert (found.numa_node, found.pci, found.driver) == (1, "0000:18:00.0", "mlx5_core")
    assert (found.model, found.interfaces) == ("ConnectX-7", ("ib0",))


@pytest.mark.parametrize(
    ("name", "driver", "layer", "expected"),
    [
        ("mlx5_0", "mlx5_core", "InfiniBand", "infiniband"),
        ("mlx5_bond_0", "mlx5_core", "Ethernet", "roce"),
        ("rdmap16s27", "efa", "Unspecified", "efa"),
        ("renamed", "efa", "Ethernet", "efa"),
    ],
)
def test_kinds_of_rdma_devices(tmp_path: Path, name: str, driver: str, layer: str, expected: str) -> None:
    rdma_device(tmp_path, name, f"{SWITCH}/0000:18:00.0", layer=layer, driver=driver)
    write(tmp_path, "sys/class/net/eth0/mtu", "1500")
    assert probe_nics(tmp_path)[0].kind == expected
    assert fabric_of(probe_nics(tmp_path)) == expected


def test_a_port_that_is_down_is_no_fabric(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", f"{SWITCH}/0000:18:00.0", state="1: DOWN")
    assert not nic(tmp_path).active
    assert fabric_of(probe_nics(tmp_path)) == "none"
    write(tmp_path, "sys/class/net/eth0/operstate", "up")
    assert fabric_of(probe_nics(tmp_path)) == "ethernet"


def test_a_device_without_port_files_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "sys/class/infiniband/mlx5_0/node_desc", "x")
    found = nic(tmp_path)
    assert (found.kind, found.rate_gbps, found.active, found.pci) == ("roce", None, True, "")


def test_plain_interfaces(tmp_path: Path) -> None:
    pci_device(tmp_path, f"{ROOT_PORT}/0000:16:00.0", vendor="0x15b3", device="0x101d", numa_node="-1")
    link(tmp_path, "sys/class/net/ens1/device", f"sys/devices/{ROOT_PORT}/0000:16:00.0")
    write(tmp_path, "sys/class/net/ens1/speed", "25000")
    write(tmp_path, "sys/class/net/eth0/speed", "-1")
    for virtual in ("lo", "docker0", "ifb0", "veth12ab"):
        write(tmp_path, f"sys/class/net/{virtual}/mtu", "1500")
    first, second = probe_nics(tmp_path)
    assert (first.name, first.rate_gbps, first.model, first.numa_node) == ("ens1", 25, "ConnectX-6 Dx", None)
    assert (second.name, second.rate_gbps, second.pci) == ("eth0", None, "")


def test_an_interface_of_an_rdma_device_is_not_listed_twice(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", f"{SWITCH}/0000:18:00.0", interface="ib0")
    assert [found.name for found in probe_nics(tmp_path)] == ["mlx5_0"]


def test_the_nearest_adapter_shares_most_bridges(tmp_path: Path) -> None:
    rdma_device(tmp_path, "near", f"{SWITCH}/0000:17:01.0/0000:18:00.0", numa_node="0")
    rdma_device(tmp_path, "same_root", "pci0000:15/0000:15:02.0/0000:30:00.0", numa_node="0")
    rdma_device(tmp_path, "far", "pci0000:80/0000:80:01.0/0000:81:00.0", numa_node="1")
    rdma_device(tmp_path, "down", f"{SWITCH}/0000:17:02.0/0000:19:00.0", state="1: DOWN")
    pci_device(tmp_path, f"{SWITCH}/0000:17:00.0/0000:1b:00.0")
    gpu = Gpu(index=0, name="x", pci="0000:1b:00.0", numa_node=0)
    assert with_nearest([gpu], probe_nics(tmp_path), tmp_path)[0].nics == ("near",)


def test_without_common_bridges_the_memory_node_decides(tmp_path: Path) -> None:
    rdma_device(tmp_path, "m0", "pci0000:01/0000:01:00.0", numa_node="0")
    rdma_device(tmp_path, "m1", "pci0002:01/0002:01:00.0", numa_node="1")
    pci_device(tmp_path, "pci0018:00/0018:01:00.0")
    nics = probe_nics(tmp_path)
    gpus = [Gpu(index=0, name="x", pci="0018:01:00.0", numa_node=1), Gpu(index=1, name="x")]
    assert [gpu.nics for gpu in with_nearest(gpus, nics, tmp_path)] == [("m1",), ()]


def test_two_gpus_and_two_adapters_behind_one_switch(tmp_path: Path) -> None:
    for place, name in enumerate(("m0", "m1")):
        rdma_device(tmp_path, name, f"{SWITCH}/0000:17:0{place}.0/0000:2{place}:00.0")
        pci_device(tmp_path, f"{SWITCH}/0000:17:1{place}.0/0000:3{place}:00.0")
    gpus = [Gpu(index=index, name="x", pci=f"0000:3{index}:00.0") for index in range(2)]
    assert [gpu.nics for gpu in with_nearest(gpus, probe_nics(tmp_path), tmp_path)] == [("m0", "m1")] * 2


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00000018:01:00.0", "0018:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        ("virtio0", ""),
        ("", ""),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert pci_address(text) == address
