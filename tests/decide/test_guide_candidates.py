"""Candidates and their order for the situations the selection guide describes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_dispatch.core.backend import BackendSpec, Capabilities, Knob
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import load_backends
from moe_dispatch.decide.guide import Candidate, candidates, domains_of
from moe_dispatch.decide.guide_rules import Rule
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.hardware import declared_site, load_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import load_workload

CPU = Site(name="here", declared=False, device="cpu", hosts=("here",))
PACKAGES = ("deepep", "hybridep", "ncclep")


def advise(
    site: Site,
    ep: int = 16,
    model: str = "qwen3-30b-a3b",
    gates: dict[str, GateResult] | None = None,
    precision: str = "bf16",
    **options: int,
) -> dict[str, Candidate]:
    found = candidates(load_workload(model, ep=ep, precision=precision), site, load_backends(), gates, **options)
    return {candidate.choice.dispatcher: candidate for candidate in found}


def included(found: dict[str, Candidate]) -> list[str]:
    return [name for name, candidate in found.items() if candidate.included]


def rules_of(candidate: Candidate) -> set[str]:
    return {reason.rule for reason in candidate.reasons}


@pytest.mark.parametrize("site", ["h100", "h200", "b200", "b300"])
def test_eight_gpu_nodes_start_with_deepep_then_hybridep_then_ncclep(site: str) -> None:
    assert included(advise(declared_site(site, 2))) == ["alltoall", "deepep", "hybridep", "ncclep", "hierarchical"]


@pytest.mark.parametrize("site", ["gb200-nvl72", "gb300"])
@pytest.mark.parametrize("ep", [16, 64])
def test_nvl72_starts_with_hybridep_and_says_that_bridge_refuses_deepep_v1(site: str, ep: int) -> None:
    found = advise(declared_site(site, 16), ep, "deepseek-v3")
    assert included(found)[:2] == ["alltoall", "hybridep"]
    assert "deepep-v1-refused-on-nvl72" in rules_of(found["deepep"])
    assert "deepep-v1-refused-on-nvl72" not in rules_of(advise(declared_site("b200", 8), ep)["deepep"])


def test_over_efa_hierarchical_comes_before_the_packages() -> None:
    found = advise(declared_site("h200-efa", 4), 32)
    assert included(found)[:3] == ["alltoall", "hierarchical", "deepep"]
    assert included(advise(declared_site("h200-infiniband", 4), 32))[1] == "deepep"


def test_a_fabric_that_is_not_crossed_does_not_matter() -> None:
    assert "not-infiniband-few-nodes" not in rules_of(advise(declared_site("h200-efa", 4), 8)["hierarchical"])


def test_a_small_group_in_one_domain_starts_with_the_simple_ones() -> None:
    found = advise(declared_site("h100"), 8)
    assert included(found) == ["alltoall", "allgather", "hierarchical", "deepep", "hybridep", "ncclep"]
    assert all("small-ep-second-order" in rules_of(found[name]) for name in PACKAGES)


@pytest.mark.parametrize(("ep", "is_candidate"), [(4, True), (8, True), (16, False), (64, False)])
def test_allgather_is_for_small_groups_only(ep: int, is_candidate: bool) -> None:
    found = advise(CPU, ep)["allgather"]
    assert found.included is is_candidate
    assert ("allgather-large-group" in rules_of(found)) is not is_candidate


def test_on_a_cpu_packages_are_shown_as_unsupported_with_the_reason() -> None:
    found = advise(CPU, 4)
    assert included(found) == ["alltoall", "allgather", "hierarchical"]
    for name in PACKAGES:
        assert found[name].gate == "unsupported"
        assert found[name].reasons[0].rule == "platform-unsupported"
        assert f"{name} moves tokens on cuda only; this site computes on cpu" == found[name].reasons[0].text


def test_hierarchical_is_a_candidate_everywhere_with_a_note_where_it_has_one_hop() -> None:
    for site in (CPU, *(declared_site(name, 2) for name in load_hardware())):
        assert advise(site, 8)["hierarchical"].included, site.name
    inside, across = advise(declared_site("h100"), 8), advise(declared_site("h100", 2), 16)
    assert "hierarchical-one-domain" in rules_of(inside["hierarchical"])
    assert "hierarchical-across-domains" in rules_of(across["hierarchical"])


def test_packages_on_amd_are_noted_as_written_for_nvidia() -> None:
    found = advise(declared_site("mi300x", 2))
    assert all("written-for-nvidia" in rules_of(found[name]) for name in PACKAGES)
    assert "written-for-nvidia" not in rules_of(found["hierarchical"])


def test_chunks_are_swept_only_where_there_is_something_to_chunk() -> None:
    assert advise(declared_site("h100"), 8)["hierarchical"].sweep == {}
    assert advise(declared_site("h100", 2), 16)["hierarchical"].sweep == {"chunks": (1, 2, 4, 8)}


def test_a_failed_gate_excludes_with_the_gates_reason_and_fix() -> None:
    gates = {
        "deepep": GateResult(
            backend="deepep", reason_class="not-installed", reason="no module named deep_ep", fix="install it"
        ),
        "hybridep": GateResult(backend="hybridep", available=True, level_reached="imports"),
    }
    found = advise(declared_site("h100", 2), gates=gates)
    assert not found["deepep"].included
    assert (found["deepep"].gate, found["deepep"].fix) == ("unavailable", "install it")
    assert found["deepep"].reasons[0].text.startswith("no module named deep_ep")
    assert found["hybridep"].included
    assert (found["hybridep"].gate, found["ncclep"].gate) == ("available", "not_gated")
    assert "gate-pending" in rules_of(found["ncclep"]) - rules_of(found["hybridep"])


def test_a_payload_that_a_package_does_not_carry_excludes_it() -> None:
    found = advise(declared_site("h100", 2), precision="fp32")
    assert included(found) == ["alltoall", "hierarchical"]
    assert "payload-unsupported" in rules_of(found["deepep"])


def test_ranks_of_a_domain_may_come_from_the_caller() -> None:
    workload = load_workload("qwen3-30b-a3b", ep=4)
    assert (domains_of(workload, CPU), domains_of(workload, CPU, 2)) == (1, 2)
    assert "hierarchical-across-domains" in rules_of(advise(CPU, 4, ranks_per_domain=2)["hierarchical"])


def test_domains_count_the_expert_tensor_group() -> None:
    workload = load_workload("qwen3-30b-a3b", ep=8, tp=2, etp=2)
    assert domains_of(workload, declared_site("h100", 2)) == 2
    assert domains_of(workload, declared_site("gb200", 8)) == 1


def third_party(**given: object) -> BackendSpec:
    return BackendSpec.model_validate(
        {"name": "teleport", "title": "Teleport", "summary": "a third party's", "kind": "package", "target": "x:Y"}
        | given
    )


def test_a_third_party_backend_is_a_candidate_without_a_rule_of_its_own() -> None:
    spec = third_party(knobs={"width": Knob(type="int", default=3, sweep=(3, 4))})
    found = candidates(load_workload("qwen3-30b-a3b", ep=4), CPU, load_backends() | {"teleport": spec})
    mine = next(candidate for candidate in found if candidate.choice.dispatcher == "teleport")
    assert mine.included
    assert mine.sweep == {"width": (3, 4)}


def test_an_experimental_backend_waits_to_be_asked_for() -> None:
    spec = third_party(experimental=True)
    found = candidates(load_workload("qwen3-30b-a3b", ep=4), CPU, load_backends() | {"teleport": spec})
    mine = next(candidate for candidate in found if candidate.choice.dispatcher == "teleport")
    assert (mine.included, rules_of(mine)) == (False, {"experimental-on-request"})


def test_a_missing_baseline_is_refused() -> None:
    specs = {name: spec for name, spec in load_backends().items() if name != "alltoall"}
    with pytest.raises(UsageError, match="baseline 'alltoall'"):
        candidates(load_workload("qwen3-30b-a3b", ep=4), CPU, specs)


def test_a_rule_cannot_move_or_exclude_the_baseline() -> None:
    hostile = Rule.model_validate(
        {
            "id": "everything-is-bad",
            "topic": "hardware",
            "date": "2026-08-22",
            "when": {},
            "effect": "exclude",
            "text": "no",
            "sources": ["nobody"],
            "refuted_by": "measuring",
        }
    )
    found = candidates(load_workload("qwen3-30b-a3b", ep=4), CPU, load_backends(), rules=[hostile])
    assert [candidate.choice.dispatcher for candidate in found if candidate.included] == ["alltoall"]


@settings(max_examples=60, deadline=None)
@given(
    hardware=st.sampled_from([*load_hardware(), "cpu"]),
    nodes=st.sampled_from([1, 2, 8, 16]),
    fabric=st.sampled_from(["infiniband", "efa", "ethernet"]),
    ep=st.sampled_from([1, 2, 8, 16, 64, 128]),
    model=st.sampled_from(["qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "qwen3-next-80b-a3b"]),
    failed=st.sets(st.sampled_from(PACKAGES)),
)
def test_invariants_of_every_advice(
    hardware: str, nodes: int, fabric: str, ep: int, model: str, failed: set[str]
) -> None:
    site = CPU if hardware == "cpu" else declared_site(hardware, nodes, fabric)
    gates = {name: GateResult(backend=name, reason_class="other", reason="broken") for name in failed}
    found = candidates(load_workload(model, ep=ep), site, load_backends(), gates)
    assert [candidate.position for candidate in found] == list(range(len(load_backends())))
    assert {candidate.choice.dispatcher for candidate in found} == set(load_backends())
    assert found[0].choice.dispatcher == "alltoall"
    assert found[0].included
    flags = [candidate.included for candidate in found]
    assert flags == sorted(flags, reverse=True)
    for candidate in found:
        assert candidate.included or candidate.reasons
        assert not (candidate.choice.dispatcher in failed and candidate.included)


def test_capabilities_stand_in_for_platforms_that_are_not_named() -> None:
    spec = third_party(capabilities=Capabilities(devices=("cuda",)))
    found = candidates(load_workload("qwen3-30b-a3b", ep=4), CPU, load_backends() | {"teleport": spec})
    mine = next(candidate for candidate in found if candidate.choice.dispatcher == "teleport")
    assert (mine.included, mine.gate) == (False, "unsupported")
