"""Topology rules about the devices of a node that was seen: NVLink fabric, handles, peers, shared GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.site.devices import Gpu, GpuFabric
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.site.model import Site
from moe_dispatch.site.topology import RankPlace, TopologyInput, check_topology, fabric_handle_failure

RACK = declared_site("gb200-nvl72", 64)
BOARD = declared_site("h100-infiniband", 32)


def findings(backend: str, site: Site, **fields: Any) -> dict[str, Finding]:
    found = check_topology(TopologyInput(backend=backend, site=site, **fields))
    return {each.id: each for each in found}


def troubles(backend: str, site: Site, **fields: Any) -> set[str]:
    """Ids of errors and warnings."""
    found = findings(backend, site, **fields)
    return {name for name, finding in found.items() if finding.severity is not Severity.INFO}


def seen(site: Site, **fields: Any) -> Site:
    """A declared site as if it had been probed."""
    return site.model_copy(update={"declared": False, "hosts": ("node0",), **fields})


def test_two_ranks_on_one_gpu() -> None:
    twice = (
        RankPlace(rank=0, host="a", gpu="GPU-1"),
        RankPlace(rank=1, host="a", gpu="GPU-1"),
        RankPlace(rank=2, host="b", gpu="GPU-1"),
    )
    found = findings("alltoall", BOARD, world=3, placement=twice)
    assert "ranks 0, 1 on a use the same GPU" in found["ranks-share-gpu"].message
    assert found["ranks-share-gpu"].severity is Severity.ERROR
    allowed = findings("alltoall", BOARD, placement=twice, environment={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert allowed["ranks-share-gpu"].severity is Severity.WARNING
    assert "ranks-share-gpu" not in findings("alltoall", BOARD, placement=twice[1:])


def gpus(**fields: Any) -> tuple[Gpu, ...]:
    return tuple(Gpu.model_validate({"index": index, "name": "x", **fields}) for index in range(2))


def test_imex_channels_are_needed_between_nodes_of_a_rack() -> None:
    rack = seen(RACK)
    assert "imex-channel-missing" in troubles("hybridep", rack, ep=64)
    alltoall = findings("alltoall", rack, ep=64)["imex-channel-missing"]
    assert alltoall.severity is Severity.WARNING
    assert "imex-channel-missing" not in findings("hybridep", rack, ep=4)
    with_channel = seen(RACK, imex_channels=("/dev/nvidia-caps-imex-channels/channel0",))
    assert "imex-channel-missing" not in findings("hybridep", with_channel, ep=64)
    assert "imex-channel-missing" not in findings("hybridep", RACK, ep=64)  # declared: nobody looked


def test_refused_fabric_handles_have_another_answer_on_each_platform() -> None:
    board = fabric_handle_failure(TopologyInput(backend="hybridep", site=declared_site("b200", 1), ep=8))
    rack = fabric_handle_failure(TopologyInput(backend="hybridep", site=RACK, ep=64))
    assert (board.id, rack.id) == ("fabric-handles-not-on-hgx", "imex-channel-missing")
    assert "USE_MNNVL" in board.advice[0]
    assert "channel" in rack.advice[0]


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        (GpuFabric(state="in_progress"), {"nvlink-fabric-incomplete"}),
        (GpuFabric(state="completed", status="success", problems=("degraded bandwidth",)), {"nvlink-fabric-degraded"}),
        (GpuFabric(state="completed", status="success"), set()),
        (GpuFabric(state="completed", status="insufficient resources"), set()),  # boards need no cluster
        (GpuFabric(state="not_supported"), set()),
        (None, set()),
    ],
)
def test_the_state_of_the_fabric(fabric: GpuFabric | None, expected: set[str]) -> None:
    site = seen(BOARD, gpus=gpus(fabric=fabric))
    assert troubles("alltoall", site, ep=8) == expected


@pytest.mark.parametrize(
    ("fabric", "severity"),
    [
        (GpuFabric(state="completed", status="success", cluster="c1", clique=1), None),
        (GpuFabric(state="completed", status="success", cluster="0000-00", clique=0), Severity.ERROR),
        (GpuFabric(state="completed", status="insufficient resources", cluster="c1", clique=1), Severity.ERROR),
        (GpuFabric(state="not_started"), Severity.ERROR),
        (GpuFabric(state="not_supported"), Severity.WARNING),
        (GpuFabric(state="unknown"), None),
    ],
)
def test_the_state_of_a_racks_fabric(fabric: GpuFabric, severity: Severity | None) -> None:
    site = seen(declared_site("gb200", 1), gpus=gpus(fabric=fabric))
    found = findings("alltoall", site, ep=4).get("nvlink-fabric-incomplete")
    assert (found.severity if found else None) == severity


def test_gpus_in_two_partitions() -> None:
    one, two = (GpuFabric(state="completed", cluster="c1", clique=clique) for clique in (1, 2))
    first, second = gpus()
    split = (first.model_copy(update={"fabric": one}), second.model_copy(update={"fabric": two}))
    assert troubles("alltoall", seen(BOARD, gpus=split), ep=8) == {"nvlink-fabric-partitioned"}


def test_gpus_without_nvlink_or_peer_access() -> None:
    no_link = seen(BOARD, gpus=gpus(links=("X", "PHB"))).model_copy(update={"nvlink_domain": None})
    assert "between GPU 0 and GPU 1 (PHB)" in findings("deepep", no_link, ep=2)["deepep-needs-nvlink"].message
    assert troubles("alltoall", no_link, ep=2) == set()
    assert troubles("deepep", seen(BOARD, gpus=gpus(links=("X", "NV18"))), ep=2) == set()
    assert troubles("alltoall", seen(BOARD, gpus=gpus(p2p=(True, False))), ep=2) == {"gpus-without-peer-access"}
    assert troubles("alltoall", seen(BOARD, gpus=gpus(p2p=(True, True))), ep=2) == set()
    assert troubles("alltoall", seen(BOARD, gpus=gpus(mig=True)), ep=2) == {"gpu-split-by-mig"}
