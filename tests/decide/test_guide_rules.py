"""The rules as data: well formed, dated, refutable, and never above the baseline."""

from __future__ import annotations

from datetime import date

import pytest
from pydantic import ValidationError

from moe_dispatch.core.registry import load_backends
from moe_dispatch.decide.guide_rules import BASELINE, Condition, Rule, Situation, load_rules
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.hardware import declared_site, load_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import load_workload

TODAY_OF_THE_NEWEST_SOURCE = date(2026, 8, 24)


def situation(
    backend: str = "deepep",
    model: str = "qwen3-30b-a3b",
    ep: int = 16,
    site: Site | None = None,
    domains: int | None = 2,
    gate: GateResult | None = None,
    precision: str = "bf16",
) -> Situation:
    return Situation(
        workload=load_workload(model, ep=ep, precision=precision),
        site=site or declared_site("h100-efa", 2),
        domains=domains,
        spec=load_backends()[backend],
        gate=gate,
    )


@pytest.mark.parametrize(
    ("condition", "contrast"),
    [
        ({"device": ["cuda"]}, {"device": ["cpu"]}),
        ({"gpu": ["h100", "h200"]}, {"gpu": ["gb200"]}),
        ({"fabric": ["efa"]}, {"fabric": ["infiniband"]}),
        ({"ep_min": 16}, {"ep_min": 17}),
        ({"ep_max": 16}, {"ep_max": 15}),
        ({"domains": "several"}, {"domains": "one"}),
        ({"model": ["qwen3-30b*"]}, {"model": ["qwen3-235b*"]}),
        ({"precision": ["bf16"]}, {"precision": ["fp8"]}),
        ({"nvlink": "one_node"}, {"nvlink": "several_nodes"}),
        ({"capability_max": 9}, {"capability_min": 10}),
        ({"tp_or_cp": False}, {"tp_or_cp": True}),
        ({"vpp_max": 1}, {"pp_min": 2}),
        ({"pp_max": 1}, {"vpp_min": 2}),
        ({"group_max": 16}, {"group_max": 15}),
        ({"nodes_max": 2}, {"nodes_max": 1}),
        ({"shared_experts": False}, {"shared_experts": True}),
        ({}, {"mtp_min": 1}),
        ({"flex": True}, {"flex": False}),
        ({"core_min": "0.18", "core_max": "0.19"}, {"core_max": "0.17"}),
        ({"stage": ["tuned"]}, {"stage": ["bring-up"]}),
        ({"memory": "tight"}, {"payload": "unsupported"}),
        ({"gate": "unknown"}, {"gate": "failed"}),
        ({"adapter": "missing"}, {"megatron": "missing"}),
        ({"experimental": False}, {"experimental": True}),
        ({"kind": "package"}, {"kind": "builtin"}),
        ({}, {"platform": "unsupported"}),
        ({"gpu": ["h100"], "ep_min": 9}, {"gpu": ["h100"], "ep_min": 64}),
    ],
)
def test_each_condition_decides(condition: dict[str, object], contrast: dict[str, object]) -> None:
    # A stand-in without adapter, so that the test does not depend on which adapters this release holds.
    at = situation()
    at = Situation(
        workload=at.workload,
        site=at.site,
        domains=at.domains,
        spec=at.spec.model_copy(update={"target": None}),
        gate=None,
        stage="tuned",
        memory_tight=True,
        core_version="0.18.1",
    )
    assert Condition.model_validate(condition).holds(at)
    assert not Condition.model_validate(contrast).holds(at)


def test_an_unknown_number_of_domains_is_neither_one_nor_several() -> None:
    at = situation(domains=None)
    assert not Condition(domains="one").holds(at)
    assert not Condition(domains="several").holds(at)


def test_a_gpu_outside_the_catalogue_is_unknown_and_a_cpu_is_no_gpu() -> None:
    strange = Site(name="x", declared=False, device="cuda", gpu_name="Accelerator 9", gpus_per_node=8)
    assert Condition(gpu=("unknown",)).holds(situation(site=strange))
    assert not Condition(gpu=("unknown",)).holds(situation(site=Site(name="x", declared=False, device="cpu")))


def test_what_is_not_said_holds_for_no_condition_on_it() -> None:
    at = situation()
    assert not Condition(stage=("bring-up", "profile", "tuned")).holds(at)
    assert not Condition(memory="tight").holds(at)
    assert not Condition(core_min="0.1").holds(at)
    strange = Site(name="x", declared=False, device="cuda", gpu_name="Accelerator 9", gpus_per_node=8)
    for condition in (Condition(capability_min=1), Condition(capability_max=99), Condition(nvlink="one_node")):
        assert not condition.holds(situation(site=strange))


def test_gate_status_says_unsupported_before_unavailable() -> None:
    failed = GateResult(backend="deepep", reason_class="not-installed", reason="no module deep_ep")
    cpu = Site(name="x", declared=False, device="cpu")
    assert situation(gate=failed, site=cpu).gate_status == "unsupported"
    assert situation(gate=failed).gate_status == "unavailable"
    assert situation(gate=GateResult(backend="deepep", available=True)).gate_status == "available"
    assert situation().gate_status == "not_gated"
    assert situation(precision="fp32").gate_status == "unsupported"  # DeepEP carries bf16


def test_shipped_rules_are_unique_dated_and_refutable() -> None:
    rules = load_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.date <= TODAY_OF_THE_NEWEST_SOURCE
        assert len(rule.refuted_by.split()) >= 3, rule.id
        assert "always" not in rule.text, rule.id


def test_shipped_rules_name_backends_knobs_and_gpus_that_exist() -> None:
    specs, hardware = load_backends(), load_hardware()
    for rule in load_rules():
        assert {*rule.backends, *rule.order} <= set(specs), rule.id
        assert set(rule.when.gpu or ()) <= {*hardware, "unknown"}, rule.id
        for knob in rule.drop_sweep:
            assert all(knob in specs[name].knobs for name in rule.backends), rule.id


@pytest.mark.parametrize("backend", ["deepep", "hierarchical", "alltoall"])
def test_every_text_can_be_filled(backend: str) -> None:
    at = situation(backend)
    for rule in load_rules():
        filled = at.fill(rule.text)
        assert filled
        assert "{" not in filled, rule.id


RULE = {
    "id": "some-rule",
    "topic": "hardware",
    "date": "2026-08-22",
    "when": {},
    "effect": "note",
    "text": "why",
    "sources": ["a document"],
    "refuted_by": "an observation",
}


@pytest.mark.parametrize(
    "change",
    [
        {"effect": "winner"},
        {"effect": "order"},
        {"effect": "order", "order": [BASELINE, "deepep"]},
        {"order": ["deepep"]},
        {"refuted_by": ""},
        {"sources": []},
        {"when": {"gpus": ["h100"]}},
        {"topic": "astrology"},
        {"baseline_hard_to_beat": True},
        {"id": "Some Rule"},
    ],
)
def test_a_rule_that_names_a_winner_or_lacks_its_grounds_is_refused(change: dict[str, object]) -> None:
    Rule.model_validate(RULE)
    with pytest.raises(ValidationError):
        Rule.model_validate(RULE | change)


def test_an_exclude_rule_for_everything_does_not_speak_of_the_baseline() -> None:
    rule = Rule.model_validate(RULE | {"effect": "exclude"})
    assert rule.speaks_of("deepep")
    assert not rule.speaks_of(BASELINE)
