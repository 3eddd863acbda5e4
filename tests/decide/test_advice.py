"""Advice for the situations the guide describes: the facts that each must state."""

from __future__ import annotations

from pathlib import Path

import pytest

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.decide.advice import Advice, CandidateAdvice
from moe_dispatch.flow.advise import AdviceRequest, run_advise, run_explain


def advise(model: str, site: str | None, nodes: int | None = None, **options: object) -> Advice:
    own = {name: options.pop(name) for name in list(options) if name in AdviceRequest.__dataclass_fields__}
    return run_advise(AdviceRequest(workload=model, sizes=options, site=site, nodes=nodes, **own))[0]


def of(advice: Advice, name: str) -> CandidateAdvice:
    return next(one for one in advice.candidates if one.name == name)


def order(advice: Advice) -> list[str]:
    return [one.name for one in advice.included]


def rules(advice: Advice, name: str) -> set[str]:
    return {reason.rule for reason in of(advice, name).candidate.reasons}


def variables(candidate: CandidateAdvice) -> dict[str, str]:
    return {one.name: one.value for one in candidate.environment if one.how == "set"}


@pytest.fixture(scope="module")
def h100() -> Advice:
    return advise("qwen3-30b-a3b", "h100", 2, ep=16)


def test_qwen3_30b_on_16_h100(h100: Advice) -> None:
    assert order(h100)[:4] == ["alltoall", "deepep", "hybridep", "ncclep"]
    assert "hopper-hybridep-can-win" in rules(h100, "hybridep")
    assert h100.recipes[0].statement.startswith("hybridep with 32 SMs (performance)")
    assert any(remark.rule == "reference-case-missing-packages" for remark in h100.availability)
    assert "over efa" in h100.pairs[0].statement  # the counter-examples on this GPU
    assert h100.pairs[0].statement.startswith("alltoall")
    assert "faster than deepep" in h100.pairs[0].statement
    assert not h100.findings


def test_it_says_what_every_advice_must(h100: Advice) -> None:
    said = {remark.rule: remark.text for remark in (*h100.availability, *h100.routing, *h100.pitfalls)}
    assert "None selects alltoall" in said["flex-needs-its-package"]
    assert "says nothing about speed" in said["import-failure-is-environment"].replace("It says", "says")
    assert "for benchmarks only" in said["forced-balance-benchmark-only"]
    assert "does not prove that it ran" in said["configuration-is-no-proof"]
    assert h100.ceiling.share is None
    assert "exposed share" in h100.next[0]
    steps = {step.rule: step for step in h100.path}
    assert "proof that it ran" in steps["one-backend-at-a-time"].text
    assert steps["baseline-first"].stage == "bring-up"


def test_published_settings_of_knobs_stand_beside_the_sweep(h100: Advice) -> None:
    assert any("overlap_moe_expert_parallel_comm off -> on" in row.statement for row in h100.knobs)
    assert all(row.differences for row in h100.knobs)
    confounded = next(row for row in h100.knobs if "routing dropless -> force_balanced" in row.statement)
    assert confounded.kind == "knob"


def test_settings_are_those_of_megatron(h100: Advice) -> None:
    hybridep = of(h100, "hybridep").configuration
    assert hybridep is not None
    assert hybridep.megatron_lm_args[:4] == (
        "--moe-token-dispatcher-type",
        "flex",
        "--moe-flex-dispatcher-backend",
        "hybridep",
    )
    assert of(h100, "hierarchical").configuration is None
    assert "ships no dispatcher" in of(h100, "hierarchical").not_configured


@pytest.mark.parametrize(
    ("site", "nodes", "ep", "version", "default"),
    [
        ("h100", 2, 16, "0.17", 16),
        ("h100", 2, 16, "0.19", 8),
        ("h100", 1, 8, "0.19", 24),
        ("gb200", 4, 16, "0.19", 24),
    ],
)
def test_sm_default_by_release_and_domain(site: str, nodes: int, ep: int, version: str, default: int) -> None:
    advice = advise("qwen3-30b-a3b", site, nodes, ep=ep, core_version=version)
    (knob, *_) = of(advice, "hybridep").knobs
    assert (knob.knob, knob.here) == ("num_sms", default)
    assert 32 in {one.value for one in knob.defaults if one.who == "harness"}
    assert of(advice, "deepep").knobs[0].here == 20


@pytest.mark.parametrize(
    ("site", "nodes", "ep", "ranks", "fabric"),
    [("h100", 2, 16, "8", "0"), ("h100", 1, 8, "8", "0"), ("gb200", 4, 16, "16", "1"), ("gb200", 16, 64, "64", "1")],
)
def test_environment_has_the_values_of_this_layout(site: str, nodes: int, ep: int, ranks: str, fabric: str) -> None:
    hybridep = of(advise("qwen3-30b-a3b", site, nodes, ep=ep), "hybridep")
    said = variables(hybridep)
    assert said["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == ranks
    assert said["USE_MNNVL"] == fabric
    assert hybridep.configuration is not None
    assert hybridep.configuration.environment["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == ranks
    assert not any(finding.severity is Severity.ERROR for finding in hybridep.findings)


@pytest.mark.parametrize(
    ("site", "tp", "value"), [("h100", 1, "32"), ("h100", 2, "1"), ("gb200", 2, "32"), ("unknown", 2, "")]
)
def test_connections_follow_the_gpus_generation(site: str, tp: int, value: str) -> None:
    advice = advise("qwen3-30b-a3b", site, ep=8, tp=tp, etp=1)
    (variable,) = [one for one in advice.environment if one.name == "CUDA_DEVICE_MAX_CONNECTIONS"]
    assert variable.value == value


def test_qwen3_235b_on_gb200() -> None:
    advice = advise("qwen3-235b-a22b", "gb200", 64, ep=32, pp=8)
    assert order(advice)[:2] == ["alltoall", "hybridep"]
    assert "qwen3-235b-nvl72" in rules(advice, "hybridep")
    assert of(advice, "deepep").blocked
    assert "deepep-v1-refused-on-nvl72" in rules(advice, "deepep")
    assert any(remark.rule == "cpu-affinity" for remark in advice.interactions)


def test_deepseek_v3_on_gb200_and_on_h100_differ() -> None:
    rack = advise("deepseek-v3", "gb200", 64, ep=64, pp=4, vpp=4, precision="fp8")
    assert order(rack)[1] == "hybridep"
    assert {"deepseek-v3-nvl72", "fp8-raises-communication"} <= rules(rack, "hybridep")
    assert any(step.rule == "staged-mfu-of-large-deepseek" for step in rack.path)
    hopper = advise("deepseek-v3", "h100", 32, ep=64, pp=4)
    assert {"deepep", "hybridep"} == set(order(hopper)[1:3])
    assert "deepseek-v3-hopper" in rules(hopper, "deepep") & rules(hopper, "hybridep")
    assert not any(step.rule == "staged-mfu-of-large-deepseek" for step in hopper.path)


def test_qwen3_next_is_a_close_race_in_bf16_and_not_in_fp8() -> None:
    size = {"ep": 32, "pp": 2, "vpp": 4}
    bf16 = advise("qwen3-next-80b-a3b", "gb200", 16, **size)
    fp8 = advise("qwen3-next-80b-a3b", "gb200", 16, precision="fp8", memory_tight=True, **size)
    assert "qwen3-next-close-race" in rules(bf16, "hybridep")
    assert "qwen3-next-close-race" not in rules(fp8, "hybridep")
    assert {"qwen3-next-fp8", "hybridep-memory-head-room"} <= rules(fp8, "hybridep")


def test_gpt_oss_on_gb200_has_alltoall_in_force_in_bf16() -> None:
    advice = advise("gpt-oss-120b", "gb200", 16, ep=64)
    assert advice.recipes[0].statement.startswith("alltoall (performance)")
    assert "dispatcher inferred" in "; ".join(advice.recipes[0].differences)


def test_a_vision_language_model_starts_simple() -> None:
    advice = advise("qwen3-vl-235b-a22b", "gb200", 16, ep=8, pp=8)
    assert "vision-language-start-simple" in rules(advice, "hybridep")
    assert order(advice)[1:3] == ["allgather", "hierarchical"]


def test_an_unknown_gpu_gets_the_baseline_first_and_no_variable_that_needs_its_domain() -> None:
    advice = advise("mixtral-8x7b", "unknown", ep=8)
    assert "unknown-hardware" in rules(advice, "deepep")
    assert "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN" not in variables(of(advice, "hybridep"))
    assert advice.recipes == ()
    assert advice.claims.claims == ()


def test_efa_puts_what_needs_nothing_of_it_first() -> None:
    few = advise("qwen3-30b-a3b", "h100-efa", 4, ep=32)
    assert order(few)[1:3] == ["hierarchical", "deepep"]
    assert "not-infiniband-few-nodes" in rules(few, "deepep")
    assert "not-infiniband-few-nodes" not in rules(advise("kimi-k2", "b300-efa", 16, ep=32), "deepep")


def test_bring_up_leaves_packages_out_and_tuned_does_not() -> None:
    early = advise("qwen3-30b-a3b", "h100", 2, ep=16, stage="bring-up")
    assert not {"deepep", "hybridep", "ncclep"} & set(order(early))
    assert {step.stage for step in early.path if step.now} == {"bring-up"}
    assert {"deepep", "hybridep"} <= set(order(advise("qwen3-30b-a3b", "h100", 2, ep=16, stage="tuned")))


def test_overlap_needs_virtual_stages_in_this_layout() -> None:
    without = advise("deepseek-v3", "h100", 32, ep=64, pp=4)
    found = {one.rule: one for one in without.combinations}
    assert found["overlap-without-virtual-stages"].verdict == "illegal"
    assert "PP 4" in found["overlap-without-virtual-stages"].text
    with_stages = {one.rule for one in advise("deepseek-v3", "h100", 32, ep=64, pp=4, vpp=4).combinations}
    assert "overlap-without-virtual-stages" not in with_stages
    assert {"overlap-with-virtual-stages", "overlap-shared-experts"} <= with_stages


def test_a_ceiling_below_the_threshold_ends_the_list_of_measurements() -> None:
    advice = advise("qwen3-30b-a3b", "h100", 2, ep=16, exposed_share=0.01)
    assert len(advice.next) == 1
    assert advice.next[0].startswith("nothing about dispatchers")


def test_a_group_that_does_not_divide_into_domains_gets_no_value_for_them() -> None:
    advice = advise("deepseek-v3", "gb200", ep=128)
    hybridep = of(advice, "hybridep")
    assert "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN" not in variables(hybridep)
    assert "is no multiple of 72 ranks" in hybridep.blocked
    assert hybridep.configuration is None
    assert any("nothing with hybridep, deepep before the layout" in line for line in advice.next)


def test_a_group_of_one_has_nothing_to_choose() -> None:
    assert order(advise("qwen3-30b-a3b", "h100", ep=1)) == ["alltoall"]
    assert len(order(advise("qwen3-30b-a3b", "h100", ep=1, tp=2, etp=2))) > 1


def test_on_a_cpu_the_order_is_untested() -> None:
    confidence = advise("qwen3-30b-a3b", None, ep=2).confidence
    assert (confidence.word, confidence.cases) == ("untested", 0)


def test_a_group_that_no_table_holds_is_blocked_with_the_way_out() -> None:
    advice = advise("qwen3-next-80b-a3b", "h100", 32, ep=64, tp=4, etp=4)
    assert "no configuration for an EP group of 256" in of(advice, "deepep").blocked
    assert "deepep" not in " ".join(advice.next)


def test_commands_carry_the_layout_and_only_what_they_can_run() -> None:
    commands = [
        command for step in advise("deepseek-v3", "gb200", 64, ep=64, precision="fp8").path for command in step.commands
    ]
    assert "moe-dispatch select deepseek-v3 --ep 64" in commands
    assert "moe-dispatch plan deepseek-v3 --ep 64 --precision fp8 --site gb200 --nodes 64 --out DIR" in commands


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"stage": "tunned"}, "unknown stage"),
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": 2, "site": None}, "needs --site"),
        ({"exposed_share": 0.1, "record": "x"}, "both say where the ceiling comes from"),
        ({"core_version": "latest"}, "not a release number"),
    ],
)
def test_contradictions_are_refused(request_: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AdviceRequest(**{"workload": "qwen3-30b-a3b", "site": "h100", **request_})


@pytest.mark.parametrize(
    ("model", "site", "nodes", "sizes", "message", "fix"),
    [
        ("qwen3-30b", "h100", 2, {"ep": 16}, "unknown model", "qwen3-30b-a3b"),
        ("qwen3-30b-a3b", "h1000", 2, {"ep": 16}, "unknown site", "--site unknown"),
        ("qwen3-30b-a3b", "h100", 1, {"ep": 16}, "takes 16 ranks, and h100x1 has 8", "2 nodes"),
        ("qwen3-30b-a3b", "h100", 2, {"ep": 12}, "does not divide the 128 experts", "use one of EP"),
        ("qwen3-30b-a3b", "h100", 2, {}, "no expert-parallel size", "--ep N"),
    ],
)
def test_wrong_names_and_layouts_are_refused_with_the_way_out(
    model: str, site: str, nodes: int, sizes: dict[str, int], message: str, fix: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        advise(model, site, nodes, **sizes)
    assert fix in caught.value.fix


def test_nodes_that_are_not_named_are_as_many_as_the_layout_takes() -> None:
    advice = advise("deepseek-v3", "h100", ep=64)
    assert (advice.site, advice.workload["world"]) == ("h100x8", 64)


def test_a_rule_is_explained_where_it_holds_and_where_not() -> None:
    request = AdviceRequest(workload="qwen3-30b-a3b", sizes={"ep": 16}, site="h100", nodes=2)
    holds, fails = run_explain("hopper-order", request), run_explain("nvl72-domain-aware-first", request)
    assert (holds.holds, holds.failing) == (True, ())
    assert (fails.holds, fails.failing) == (False, ("nvlink",))
    assert run_explain("hopper-order").holds is None
    pending = run_explain("gate-pending", request)
    assert pending.dispatchers == ("deepep", "hybridep", "ncclep")
    assert "whether deepep imports" in pending.text


def test_what_is_no_record_gives_no_ceiling(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "does not exist"), (tmp_path, "is a folder without a record")):
        with pytest.raises(UsageError, match=message):
            advise("qwen3-30b-a3b", "h100", 2, ep=16, record=str(path))
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(UsageError, match="--record"):
        advise("qwen3-30b-a3b", "h100", 2, ep=16, record=str(tmp_path))
