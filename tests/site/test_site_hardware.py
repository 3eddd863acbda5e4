"""The hardware catalogue and declared sites, against published figures."""

from __future__ import annotations

import pytest

from moe_dispatch.core.errors import UsageError
from moe_dispatch.site.hardware import (
    FABRICS,
    declared_site,
    find_hardware,
    hardware_of_device,
    is_this_machine,
    load_hardware,
)
from moe_dispatch.site.model import Site

# NVLink and Infinity Fabric: links x GB/s of one link in one direction, from the makers' architecture papers.
LINKS = {
    "a100": (12, 25),
    "h100": (18, 25),
    "h200": (18, 25),
    "b200": (18, 50),
    "b300": (18, 50),
    "gb200": (18, 50),
    "gb300": (18, 50),
    "mi300x": (7, 64),
}
ROUNDED = 1e-3  # makers round each figure to four digits at most (H100: 989.4 is given as 989, 1978.9 as 1979)
# NVIDIA-NeMo/Megatron-Bridge@067f987d:scripts/performance/utils/utils.py: ranks of an EP group in one NVLink domain.
BRIDGE_RANKS = [("h100", 16, 8), ("h100", 4, 4), ("b200", 64, 8), ("b300", 8, 8), ("gb200", 64, 64), ("gb300", 32, 32)]


@pytest.mark.parametrize(("name", "links"), LINKS.items())
def test_fast_link_is_links_times_rate(name: str, links: tuple[int, int]) -> None:
    assert load_hardware()[name].link_gbytes_per_s == links[0] * links[1]


def test_the_catalogue_is_complete_and_every_entry_has_a_source() -> None:
    catalogue = load_hardware()
    assert set(catalogue) == set(LINKS)
    for entry in catalogue.values():
        assert entry.source
        assert entry.nvlink_domain >= entry.gpus_per_node
        assert entry.link_gbytes_per_s > entry.nic_gbytes_per_s
    matches = [word for entry in catalogue.values() for word in entry.match]
    assert len(matches) == len(set(matches))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("h100", "h100"),
        ("H100-SXM", "h100"),
        ("h100-efa", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("gb200-nvl72", "gb200"),
        ("h100-nvl8", "h100"),
        ("hgx-h100-roce", "h100"),
        ("dgx_b300", "b300"),
        ("GB200_NVL72", "gb200"),
        ("DGX B200", "b200"),
        ("Instinct MI300X", "mi300x"),
    ],
)
def test_names_are_forgiving(given: str, expected: str) -> None:
    assert find_hardware(given).name == expected


@pytest.mark.parametrize("name", ["h1000", "", "h100 or b200", "tpu"])
def test_an_unknown_name_lists_what_is_known(name: str) -> None:
    with pytest.raises(UsageError, match="known: a100, h100") as caught:
        find_hardware(name)
    assert caught.value.fix


@pytest.mark.parametrize("name", ["h100-pcie", "h200-nvl", "h100-nvl72", "gb200-nvl8", "b200-b200x"])
def test_a_word_that_means_other_hardware_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not part of") as caught:
        find_hardware(name)
    assert "beside it" in caught.value.fix


def test_the_nearest_name_is_suggested() -> None:
    for given, near in (("gb20-nvl72", "gb200-nvl72"), ("gb100", "gb"), ("mi300", "mi300x")):
        with pytest.raises(UsageError) as caught:
            find_hardware(given)
        assert near in caught.value.fix


def test_peaks_without_sparsity_double_from_bf16_to_fp8_where_the_format_exists() -> None:
    for entry in load_hardware().values():
        if entry.name == "a100":
            assert entry.fp8_tflops is None
        else:
            assert entry.fp8_tflops is not None
            assert entry.fp8_tflops / entry.bf16_tflops == pytest.approx(2, rel=ROUNDED)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA H100 PCIe", None),  # no NVLink domain of eight
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_device_names_of_the_driver(device: str, expected: str | None) -> None:
    entry = hardware_of_device(device)
    assert (entry.name if entry else None) == expected


@pytest.mark.parametrize(("name", "ep", "ranks"), BRIDGE_RANKS)
def test_ranks_per_domain_are_those_that_bridge_derives(name: str, ep: int, ranks: int) -> None:
    nodes = -(-ep // load_hardware()[name].gpus_per_node)
    assert declared_site(name, nodes).ranks_per_domain(ep) == ranks


def test_a_declared_site() -> None:
    site = declared_site("h100", 2)
    assert (site.name, site.declared, site.device, site.transport) == ("h100x2", True, "cuda", "nccl")
    assert (site.ranks, site.gpus_per_node, site.nvlink_domain) == (16, 8, 8)
    assert site.fabric == "unknown"
    assert site.domains(16) == 2
    assert not site.is_multi_node_nvlink
    rack = declared_site("gb200-nvl72", 18)
    assert rack.is_multi_node_nvlink
    assert (rack.ranks, rack.domains(64), rack.domains(144)) == (72, 1, 2)


def test_the_fabric_is_given_or_part_of_the_name() -> None:
    assert declared_site("h100-efa", 2).fabric == "efa"
    assert declared_site("h100", 2, fabric="roce").fabric == "roce"
    assert declared_site("h100-efa", 2, fabric="infiniband").fabric == "infiniband"
    with pytest.raises(UsageError, match=r"carrier-pigeon.*infiniband"):
        declared_site("h100", 2, fabric="carrier-pigeon")
    with pytest.raises(UsageError, match="nodes=0"):
        declared_site("h100", 0)
    assert "none" not in FABRICS


def probed(**changes: object) -> Site:
    return declared_site("h100", 2).model_copy(update={"declared": False, "fabric": "infiniband", **changes})


def test_is_this_machine_compares_what_a_verdict_depends_on() -> None:
    declared = declared_site("h100", 2)
    assert is_this_machine(declared, probed())
    assert not is_this_machine(declared, probed(gpu="h200"))
    assert not is_this_machine(declared, probed(gpu=None))
    assert not is_this_machine(declared, probed(nodes=1))
    assert not is_this_machine(declared, probed(gpus_per_node=4))
    assert not is_this_machine(declared, probed(device="cpu", gpu=None, gpus_per_node=0))
    assert not is_this_machine(declared_site("h100-efa", 2), probed())
    one_node = declared_site("h100-efa", 1)  # nothing crosses nodes, so the fabric does not matter
    assert is_this_machine(one_node, probed(nodes=1))
