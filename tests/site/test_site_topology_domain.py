"""Topology rules about NVLink domains: groups, the variables that describe them, and where ranks are."""

from __future__ import annotations

from typing import Any

import pytest

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.site.model import Site
from moe_dispatch.site.topology import RankPlace, TopologyInput, check_topology

DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
RACK = declared_site("gb200-nvl72", 64)
BOARD = declared_site("h100-infiniband", 32)


def findings(backend: str, site: Site, **fields: Any) -> dict[str, Finding]:
    found = check_topology(TopologyInput(backend=backend, site=site, **fields))
    assert [each.severity for each in found] == sorted((each.severity for each in found), key=list(Severity).index)
    return {each.id: each for each in found}


def troubles(backend: str, site: Site, **fields: Any) -> set[str]:
    """Ids of errors and warnings."""
    found = findings(backend, site, **fields)
    return {name for name, finding in found.items() if finding.severity is not Severity.INFO}


def placed(*domains: str) -> tuple[RankPlace, ...]:
    return tuple(RankPlace(rank=rank, host=f"h{rank // 4}", domain=name) for rank, name in enumerate(domains))


# Published case: EP overridden from 16 to 64, the variable still says 16 (NVIDIA-NeMo/Megatron-Bridge#1948, #6062).
def test_a_variable_left_from_before_an_override() -> None:
    found = findings("hybridep", RACK, ep=64, pp=4, world=256, environment={DOMAIN: "16", "USE_MNNVL": "1"})
    finding = found["hybridep-domain-ranks-mismatch"]
    assert finding.severity is Severity.ERROR
    assert f"{DOMAIN}=16" in finding.message
    assert f"set {DOMAIN}=64" in finding.advice[0]
    assert "after all overrides" in finding.advice[1]
    assert "placed inside one NVLink domain" in finding.advice[2]
    assert f"{DOMAIN}=4" not in " ".join(finding.advice)  # GPUs of a tray are not a domain
    assert [name for name, each in found.items() if each.severity is Severity.ERROR] == [finding.id]


def test_the_same_job_without_the_override_or_on_boards_is_right() -> None:
    assert troubles("hybridep", RACK, ep=16, pp=4, world=256, environment={DOMAIN: "16", "USE_MNNVL": "1"}) == set()
    assert troubles("hybridep", BOARD, ep=16, pp=4, world=256, environment={DOMAIN: "8"}) == set()
    assert troubles("hybridep", RACK, ep=64, world=256, environment={DOMAIN: "64"}) == set()
    assert troubles("hybridep", RACK, ep=64, world=256) == set()  # unset: builds detect it
    assert troubles("alltoall", RACK, ep=64, world=256, environment={DOMAIN: "16"}) == set()  # nobody reads it


@pytest.mark.parametrize(
    ("site", "ep", "expert_tp", "value", "right"),
    [
        (RACK, 64, 1, 4, 64),
        (RACK, 32, 2, 32, 64),  # the group is EP x expert TP
        (BOARD, 16, 1, 16, 8),
        (BOARD, 4, 1, 8, 4),
        (declared_site("gb200"), 64, 1, 4, 64),  # declared with one node: the group still needs its 64 ranks
    ],
)
def test_the_right_value_is_the_smaller_of_group_and_domain(
    site: Site, ep: int, expert_tp: int, value: int, right: int
) -> None:
    found = findings("hybridep", site, ep=ep, expert_tp=expert_tp, environment={DOMAIN: str(value)})
    assert f"set {DOMAIN}={right}," in found["hybridep-domain-ranks-mismatch"].advice[0]
    assert "hybridep-domain-ranks-mismatch" not in findings(
        "hybridep", site, ep=ep, expert_tp=expert_tp, environment={DOMAIN: str(right)}
    )


def test_ranks_per_node_limit_a_domain_of_boards() -> None:
    assert troubles("hybridep", BOARD, ep=8, ranks_per_node=4, environment={DOMAIN: "4"}) == set()
    assert "hybridep-domain-ranks-mismatch" in findings(
        "hybridep", BOARD, ep=8, ranks_per_node=4, environment={DOMAIN: "8"}
    )


def test_an_unset_variable_is_mentioned_where_older_builds_would_be_wrong() -> None:
    name = "hybridep-domain-ranks-unset"
    assert f"{DOMAIN}=64" in findings("hybridep", RACK, ep=64, world=256)[name].advice[0]
    assert findings("hybridep", RACK, ep=64, world=256)[name].severity is Severity.INFO
    assert name in findings("hybridep", BOARD, ep=4)  # 4 is no multiple of the 8 they take
    assert name not in findings("hybridep", BOARD, ep=16)
    assert name not in findings("hybridep", RACK, ep=64, world=256, environment={DOMAIN: "64"})
    assert name not in findings("deepep", BOARD, ep=4)


def test_devices_named_by_uuid_stop_the_check_of_deepep() -> None:
    name = "deepep-visible-devices-not-numbers"
    assert name in troubles("deepep", BOARD, ep=8, environment={"CUDA_VISIBLE_DEVICES": "GPU-1a2b,GPU-3c4d"})
    assert name not in findings("deepep", BOARD, ep=8, environment={"CUDA_VISIBLE_DEVICES": "0, 1,2,"})
    assert name not in findings("deepep", BOARD, ep=8)


@pytest.mark.parametrize("value", ["", "0", "-8", "eight", "8.0", "٨x", "9" * 5000])
def test_a_value_that_is_no_size(value: str) -> None:
    assert "hybridep-domain-ranks-invalid" in troubles("hybridep", BOARD, ep=16, environment={DOMAIN: value})


def test_a_group_that_is_no_multiple_of_the_domain() -> None:
    found = findings("hybridep", BOARD, ep=12, world=96)
    assert "12 ranks is no multiple of 8" in found["hybridep-group-not-divisible"].message
    assert found["ep-group-straddles-domain"].severity is Severity.ERROR
    assert "hierarchical-group-not-divisible" in troubles("hierarchical", BOARD, ep=12, world=96)
    assert troubles("alltoall", BOARD, ep=12, world=96) == {"ep-group-straddles-domain"}  # slower, not wrong
    assert "hybridep-group-not-divisible" in troubles("hybridep", BOARD, ep=16, environment={DOMAIN: "6"})
    assert troubles("hybridep", BOARD, ep=16) == set()


def test_a_domain_above_what_kernels_are_built_for_is_refused() -> None:
    assert "hybridep-domain-above-72" in troubles("hybridep", RACK, ep=144, environment={DOMAIN: "144"})
    assert "hybridep-domain-above-72" not in troubles("hybridep", RACK, ep=144, environment={DOMAIN: "72"})
    wide = RACK.model_copy(update={"nvlink_domain": 144})
    assert "hybridep-domain-above-72" in troubles("hybridep", wide, ep=144, world=144)


def test_a_group_above_the_rack_is_refused_by_bridge() -> None:
    for framework, severity in (("megatron-bridge", Severity.ERROR), ("megatron-lm", Severity.WARNING)):
        found = findings("hybridep", RACK, ep=144, framework=framework)
        assert found["hybridep-group-above-nvlink-domain"].severity is severity
    assert "hybridep-group-above-nvlink-domain" not in findings("hybridep", RACK, ep=72)
    assert "hybridep-group-above-nvlink-domain" not in findings("hybridep", BOARD, ep=144)


def test_multi_node_nvlink_is_switched_on_where_it_is_and_off_where_not() -> None:
    assert troubles("hybridep", BOARD, ep=16, environment={"USE_MNNVL": "1"}) == {"hybridep-mnnvl-on-one-node-nvlink"}
    assert troubles("hybridep", BOARD, ep=16, environment={"USE_MNNVL": "0"}) == set()
    for off in ("0", "False"):
        assert troubles("hybridep", RACK, ep=64, environment={"USE_MNNVL": off}) == {"hybridep-mnnvl-off"}
    assert troubles("hybridep", RACK, ep=4, environment={"USE_MNNVL": "0"}) == set()  # one tray needs no handles
    assert troubles("hybridep", RACK, ep=64, environment={"USE_MNNVL": "no"}) == set()  # only 0 and false are read
    assert troubles("deepep", BOARD, ep=16, environment={"USE_MNNVL": "1"}) == set()


# Published case: explicit deepep on GB200 (NVIDIA-NeMo/Megatron-Bridge#5992, #5207).
def test_deepep_v1_on_gb200() -> None:
    found = findings("deepep", declared_site("gb200", 8), ep=32)
    finding = found["deepep-v1-unsupported-on-gb200"]
    assert finding.severity is Severity.ERROR
    assert "hybridep" in finding.advice[0]
    assert "deepep-v1-needs-8-ranks-per-node" not in found
    assert troubles("deepep", declared_site("b200", 4), ep=32) == set()
    assert troubles("hybridep", declared_site("gb200", 8), ep=32) == set()


@pytest.mark.parametrize(("group", "nearest"), [(12, "8 or 16"), (3, "2 or 4"), (512, "160"), (40, "32 or 48")])
def test_group_sizes_without_a_configuration(group: int, nearest: str) -> None:
    site = declared_site("h100", 64)
    finding = findings("deepep", site, ep=group)["deepep-group-size-unsupported"]
    assert f"from that list: {nearest}" in finding.advice[0]
    assert "deepep-group-size-unsupported" not in findings("hybridep", site, ep=group)


@pytest.mark.parametrize("group", [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160])
def test_group_sizes_with_a_configuration(group: int) -> None:
    assert "deepep-group-size-unsupported" not in findings("deepep", declared_site("h100", 20), ep=group)


def test_deepep_v1_needs_eight_ranks_on_every_node_once_it_crosses() -> None:
    assert "deepep-v1-needs-8-ranks-per-node" in troubles("deepep", BOARD, ep=16, ranks_per_node=1)
    assert "deepep-v1-needs-8-ranks-per-node" in troubles("deepep", BOARD, ep=16, ranks_per_node=4)
    assert troubles("deepep", BOARD, ep=4, ranks_per_node=4) == set()
    assert troubles("deepep", BOARD, ep=16) == set()


def test_groups_by_rank_order() -> None:
    assert "ep-group-straddles-domain" in troubles("alltoall", BOARD, ep=6, world=24)
    assert "ep-group-straddles-domain" in troubles("alltoall", BOARD, ep=3, expert_tp=2, world=24)
    assert troubles("alltoall", BOARD, ep=4, expert_tp=2, world=256) == set()


def test_groups_as_placed() -> None:
    site = declared_site("gb200", 4)
    halves = placed(*["a"] * 4, *["b"] * 4, *["b"] * 4, *["a"] * 4)
    found = findings("hybridep", site, ep=8, world=16, placement=halves)
    assert found["ep-group-straddles-domain"].severity is Severity.WARNING  # equal halves work, slower
    assert "ranks 0-7 and 1 more: 4 + 4 ranks" in found["ep-group-straddles-domain"].message
    assert troubles("hybridep", site, ep=8, world=16, placement=halves, environment={DOMAIN: "4"}) == {
        "ep-group-straddles-domain"
    }  # the variable says how it is, not how it should be
    cut = placed(*["a"] * 6, *["b"] * 10)
    assert findings("hybridep", site, ep=8, world=16, placement=cut)["ep-group-straddles-domain"].severity is (
        Severity.ERROR
    )
    whole = placed(*["a"] * 8, *["b"] * 8)
    assert troubles("hybridep", site, ep=8, world=16, placement=whole, environment={DOMAIN: "8"}) == set()


def test_a_layout_that_running_ranks_do_not_fill() -> None:
    ranks = placed(*["a"] * 12)
    found = findings("alltoall", BOARD, ep=4, pp=2, world=12, placement=ranks)
    assert "expert TP x EP x PP = 8 does not divide the 12 ranks" in found["layout-does-not-fit-ranks"].message
    assert "layout-does-not-fit-ranks" in findings("alltoall", BOARD, tp=4, cp=2, world=12, placement=ranks)
    assert "layout-does-not-fit-ranks" not in findings("alltoall", BOARD, ep=4, pp=3, world=12, placement=ranks)
    assert "layout-does-not-fit-ranks" not in findings("alltoall", BOARD, ep=4, pp=2, world=12)


def test_racks_that_groups_do_not_tile() -> None:
    found = findings("hybridep", RACK, ep=64, world=256)
    assert "--segment=16" in found["ep-group-placement-unknown"].advice[0]
    assert "ep-group-placement-unknown" not in findings("hybridep", RACK, ep=64, world=64)  # one rack holds them all
    assert "ep-group-placement-unknown" not in findings("hybridep", RACK, ep=8, world=256)  # 72 is a multiple
    named = placed(*["a"] * 64, *["b"] * 64)
    assert "ep-group-placement-unknown" not in findings("hybridep", RACK, ep=64, world=128, placement=named)


@pytest.mark.parametrize("places", [placed("a", "a", "b"), placed("a")[:0], (RankPlace(rank=5, host="h"),)])
def test_a_partial_placement_brings_no_error(places: tuple[RankPlace, ...]) -> None:
    assert troubles("hybridep", RACK, ep=16, world=64, placement=places) == set()
