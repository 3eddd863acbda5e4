"""Topology rules about what carries tokens between NVLink domains: queues, adapters, libraries."""

from __future__ import annotations

from typing import Any

import pytest

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.site.devices import Gpu, Nic
from moe_dispatch.site.exchange import exchange_facts
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.site.model import Site
from moe_dispatch.site.topology import RankPlace, TopologyInput, check_topology

DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
BOARDS = declared_site("h100-infiniband", 2)


def findings(backend: str, site: Site, **fields: Any) -> dict[str, Finding]:
    return {each.id: each for each in check_topology(TopologyInput(backend=backend, site=site, **fields))}


def seen(site: Site, **fields: Any) -> Site:
    return site.model_copy(update={"declared": False, "hosts": ("node0",), **fields})


# Published case: sequence 8192, micro batch 4, EP 16 on two H100 nodes (NVIDIA/Megatron-LM#3999, #4094, #4718).
def test_more_tokens_than_a_send_queue_holds() -> None:
    finding = findings("hybridep", BOARDS, ep=16, tokens_per_rank=32768, micro_batch=4)["hybridep-ib-queue-depth"]
    assert finding.severity is Severity.ERROR
    assert "98305" in finding.message
    assert "at most 21844 tokens" in finding.message
    assert finding.advice[0] == "micro batch 2 (16384 tokens per rank, a queue of 49153)"
    assert finding.advice[1].startswith("2 times the context or tensor parallelism")
    far = findings("hybridep", BOARDS, ep=16, tokens_per_rank=65536, micro_batch=1)["hybridep-ib-queue-depth"]
    assert far.advice == (
        "4 times the context or tensor parallelism (with sequence parallelism): 16384 tokens per rank",
    )


def test_the_limit_exists_only_between_domains() -> None:
    name = "hybridep-ib-queue-depth"
    rack = declared_site("gb300", 2)
    assert name not in findings("hybridep", rack, ep=8, tokens_per_rank=32768, environment={"USE_MNNVL": "1"})
    assert name not in findings("hybridep", BOARDS, ep=8, tokens_per_rank=32768)
    assert name not in findings("hybridep", BOARDS, ep=16, tokens_per_rank=16384)
    assert name not in findings("alltoall", BOARDS, ep=16, tokens_per_rank=32768)
    assert name not in findings("hybridep", BOARDS, ep=16)  # tokens are not known
    # a variable that cuts the rack into trays brings the limit back
    assert name in findings("hybridep", rack, ep=8, tokens_per_rank=32768, environment={DOMAIN: "4"})


def test_the_exact_edge_of_the_limit() -> None:
    queue = exchange_facts("hybridep").queue
    assert queue is not None
    assert queue.most_tokens == 21844
    for tokens, expected in ((21844, False), (21845, True)):
        found = findings("hybridep", BOARDS, ep=16, tokens_per_rank=tokens)
        assert ("hybridep-ib-queue-depth" in found) is expected


@pytest.mark.parametrize(("fabric", "expected"), [("roce", True), ("unknown", True), ("efa", False)])
def test_the_limit_by_network(fabric: str, expected: bool) -> None:
    site = BOARDS.model_copy(update={"fabric": fabric})
    found = findings("hybridep", site, ep=16, tokens_per_rank=32768, micro_batch=1)
    assert ("hybridep-ib-queue-depth" in found) is expected
    if fabric == "unknown":
        assert any("--site h100-infiniband" in line for line in found["hybridep-ib-queue-depth"].advice)


def test_the_gid_on_roce() -> None:
    roce = declared_site("h100-roce", 2)
    finding = findings("hybridep", roce, ep=16, environment={"NCCL_IB_GID_INDEX": "3"})["hybridep-roce-gid-ignored"]
    assert "NCCL_IB_GID_INDEX=3 is not read" in finding.message
    assert "hybridep-roce-gid-ignored" not in findings("hybridep", roce, ep=8)
    assert "hybridep-roce-gid-ignored" not in findings("hybridep", BOARDS, ep=16)
    assert "hybridep-roce-gid-ignored" not in findings("deepep", roce, ep=16)


@pytest.mark.parametrize("backend", ["deepep", "hybridep"])
def test_rdma_is_needed_between_domains(backend: str) -> None:
    bare = seen(BOARDS, fabric="ethernet")
    assert findings(backend, bare, ep=16)["rdma-needed-between-domains"].severity is Severity.ERROR
    assert "rdma-needed-between-domains" not in findings(backend, bare, ep=8)
    assert "rdma-needed-between-domains" not in findings(backend, seen(BOARDS), ep=16)
    assert "rdma-needed-between-domains" not in findings("hierarchical", bare, ep=16)
    declared = BOARDS.model_copy(update={"fabric": "ethernet"})
    assert "rdma-needed-between-domains" not in findings(backend, declared, ep=16)


def test_the_module_that_gives_adapters_gpu_memory() -> None:
    name = "gpudirect-module-missing"
    assert name in findings("deepep", seen(BOARDS), ep=16)
    assert name in findings("deepep", seen(BOARDS, kernel_modules=("gdrdrv",)), ep=16)
    for module in ("nvidia_peermem", "nv_peer_mem", "nvidia-open"):
        assert name not in findings("deepep", seen(BOARDS, kernel_modules=(module,)), ep=16)
    assert name not in findings("deepep", seen(BOARDS), ep=8)
    assert name not in findings("deepep", BOARDS, ep=16)
    assert name not in findings("alltoall", seen(BOARDS), ep=16)


@pytest.mark.parametrize(
    ("gpu", "nvshmem", "expected"),
    [
        ("b300", "3.4.5", True),
        ("b300", None, True),  # unknown: nothing rules it out
        ("b300", "3.3.20", False),
        ("b200", "3.4.5", False),
    ],
)
def test_nvshmem_on_b300(gpu: str, nvshmem: str | None, expected: bool) -> None:
    found = findings("deepep", declared_site(gpu, 2), ep=16, versions={"nvshmem": nvshmem})
    assert ("nvshmem-ibgda-on-b300" in found) is expected
    assert "nvshmem-ibgda-on-b300" not in findings("hybridep", declared_site(gpu, 2), ep=16)
    assert "nvshmem-ibgda-on-b300" not in findings("deepep", declared_site(gpu, 2), ep=8)


@pytest.mark.parametrize(
    ("nvshmem", "expected"), [("3.5.19", True), ("3.6.5", True), ("3.4.5", False), ("3.5.18", False), (None, False)]
)
def test_the_order_of_queue_pairs(nvshmem: str | None, expected: bool) -> None:
    found = findings("deepep", BOARDS, ep=16, versions={"nvshmem": nvshmem})
    assert ("nvshmem-queue-pair-order" in found) is expected


def test_large_groups_on_efa() -> None:
    site = declared_site("h200-efa", 16)
    assert findings("deepep", site, ep=64)["efa-group-ceiling"].severity is Severity.WARNING
    assert "efa-group-ceiling" not in findings("deepep", site, ep=32)
    assert "efa-group-ceiling" not in findings("deepep", declared_site("h200-infiniband", 16), ep=64)
    assert "efa-group-ceiling" not in findings("alltoall", site, ep=64)


@pytest.mark.parametrize(
    ("nccl", "ranks", "expected"),
    [
        ("2.27.5", 44, True),
        ("2.27.5", 40, False),
        ("2.30.4", 40, True),
        ("2.30.4", 36, False),
        ("2.30.7", 72, False),
        (None, 72, False),
    ],
)
def test_ranks_of_one_clique(nccl: str | None, ranks: int, expected: bool) -> None:
    site = declared_site("gb200", ranks // 4)
    found = findings("alltoall", site, ep=4, world=ranks, versions={"nccl": nccl})
    assert ("nccl-mnnvl-clique" in found) is expected
    boards = declared_site("h100", ranks // 4)
    assert "nccl-mnnvl-clique" not in findings("alltoall", boards, ep=4, world=ranks, versions={"nccl": nccl})


def adapters(*names: str) -> tuple[Nic, ...]:
    return tuple(Nic(name=name, kind="infiniband") for name in names)


def near(*nics: tuple[str, ...]) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=index, name="x", nics=names) for index, names in enumerate(nics))


def test_two_gpus_and_two_adapters_behind_one_switch() -> None:
    site = seen(
        BOARDS, gpus=near(("m0", "m1"), ("m0", "m1")), nics=adapters("m0", "m1"), kernel_modules=("nvidia-open",)
    )
    finding = findings("alltoall", site, ep=16)["nic-shared-by-gpus"]
    assert finding.severity is Severity.WARNING
    assert "GPU 0, GPU 1 share the adapter m0; idle: m1" in finding.message
    assert "nic-shared-by-gpus" not in findings("alltoall", site, ep=8)
    own = site.model_copy(update={"gpus": near(("m0",), ("m1",))})
    assert "nic-shared-by-gpus" not in findings("alltoall", own, ep=16)


def test_fewer_adapters_than_gpus_is_how_the_machine_is() -> None:
    site = seen(BOARDS, gpus=near(("m0",), ("m0",)), nics=adapters("m0"))
    assert findings("alltoall", site, ep=16)["nic-shared-by-gpus"].severity is Severity.INFO


def test_adapters_as_ranks_use_them() -> None:
    site = seen(BOARDS, gpus=near(("m0",), ("m1",)), nics=adapters("m0", "m1"))
    places = tuple(RankPlace(rank=rank, host=f"h{rank // 2}", nic="m0") for rank in range(4))
    finding = findings("alltoall", site, ep=16, placement=places)["nic-shared-by-gpus"]
    assert finding.message == "rank 0, rank 1 share the adapter m0 on h0; idle: m1, and 1 more so"


def test_what_crosses_is_said_with_the_network() -> None:
    message = findings("alltoall", BOARDS, ep=16)["ep-group-spans-domains"].message
    assert "spans 2 NVLink domains of 8 ranks, joined by InfiniBand" in message
    assert findings("alltoall", BOARDS, ep=8) == {}
