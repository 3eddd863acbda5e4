"""The matched training A/B: arms differ in the dispatcher only, and acceptance names what must be seen."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.emit import AbPlan, ab_plan
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.workload.workload import load_workload

BASELINE = Choice(dispatcher="alltoall")
DEEPEP = Choice(dispatcher="deepep", knobs={"num_sms": 24})
FORCED_LM = "--moe-router-force-load-balancing"


def plan(winner: Choice = DEEPEP, model: str = "qwen3-30b-a3b", site: str = "h100", **given: Any) -> AbPlan:
    sizes = {"ep": 16, **given.pop("sizes", {})}
    found = ab_plan(BASELINE, winner, load_workload(model, **sizes), declared_site(site, 2), **given)
    assert found is not None
    return found


def words(line: str) -> set[str]:
    """Flags with their values, and overrides, of a shell line."""
    groups: list[str] = []
    for part in shlex.split(line):
        if part.startswith("-") or "=" in part or not groups:
            groups.append(part)
        else:
            groups[-1] += f" {part}"
    return set(groups)


def test_megatron_lm_arms_differ_in_the_dispatcher_only() -> None:
    baseline, winner, _ = plan().arms
    only_baseline, only_winner = words(baseline.megatron_lm), words(winner.megatron_lm)
    assert only_baseline - only_winner == {"--moe-token-dispatcher-type alltoall"}
    assert only_winner - only_baseline == {
        "--moe-token-dispatcher-type flex",
        "--moe-flex-dispatcher-backend deepep",
        "--moe-flex-dispatcher-num-sms 24",
    }


def test_bridge_arms_differ_in_the_dispatcher_only_and_the_baseline_is_neutralised() -> None:
    baseline, winner, _ = plan().arms
    first, second = words(baseline.bridge), words(winner.bridge)
    assert first - second == {
        "--moe_flex_dispatcher_backend None",
        *("model.moe_token_dispatcher_type=alltoall", "model.moe_flex_dispatcher_backend=null"),
        "model.moe_flex_dispatcher_num_sms=null",
    }
    assert second - first == {
        *("model.moe_token_dispatcher_type=flex", "model.moe_flex_dispatcher_backend=deepep"),
        "model.moe_flex_dispatcher_num_sms=24",
    }


def test_what_bridge_would_rewrite_for_one_arm_is_pinned_in_all() -> None:
    for arm in plan().arms:
        for pinned in (
            "model.moe_shared_expert_overlap=false",
            "comm_overlap.overlap_moe_expert_parallel_comm=false",
            "comm_overlap.delay_wgrad_compute=false",
            "logger.filter_warnings=false",
        ):
            assert pinned in arm.bridge.split()


def test_forced_routing_in_the_compared_arms_and_natural_routing_in_the_validation() -> None:
    found = plan()
    assert [(arm.name, arm.routing) for arm in found.arms] == [
        ("baseline", "forced"),
        ("winner", "forced"),
        ("winner-natural", "natural"),
    ]
    assert [FORCED_LM in arm.megatron_lm for arm in found.arms] == [True, True, False]
    assert ["model.moe_router_force_load_balancing=true" in arm.bridge for arm in found.arms] == [True, True, False]
    assert "model.moe_router_force_load_balancing=false" in found.arms[2].bridge
    assert "natural routing" in found.validation[0]


def test_both_arms_run_twice_and_the_last_ten_of_fifty_steps_count() -> None:
    found = plan()
    assert (found.steps, found.window) == (50, (41, 50))
    assert found.order == ("baseline", "winner", "winner", "baseline", "winner-natural")
    assert all("--train-iters 50" in arm.megatron_lm and "--max_steps 50" in arm.bridge for arm in found.arms)


def test_criteria_name_the_window_the_threshold_the_loss_and_the_proof() -> None:
    text = "\n".join(plan(threshold=0.05).criteria)
    for needed in ("steps 41-50", "at least 5%", "finite loss", "alltoall and deepep", "Falling back to alltoall"):
        assert needed in text


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="steps=19"):
        plan(steps=19)
    assert plan(steps=20).window == (11, 20)


def test_sizes_of_the_workload_reach_both_commands() -> None:
    found = plan(model="deepseek-v3", sizes={"tp": 2, "etp": 1, "pp": 2, "vpp": 2, "global_batch": 64})
    lm, bridge = words(found.arms[0].megatron_lm), found.arms[0].bridge
    assert {
        "--num-experts 256",
        "--moe-router-topk 8",
        "--hidden-size 7168",
        "--expert-model-parallel-size 16",
        "--expert-tensor-parallel-size 1",
        "--tensor-model-parallel-size 2",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--kv-lora-rank 512",
        "--moe-layer-freq ([0]*3+[1]*58)",
        "--moe-router-num-groups 8",
    } <= lm
    assert "--sequence-parallel" in lm
    for part in ("-m deepseek -mr deepseek_v3", "-g h100", "-ep 16 -et 1", "-gb 64"):
        assert part in bridge
    assert "model.virtual_pipeline_model_parallel_size=2" in bridge.split()
    assert any("pipeline layout" in note for note in found.notes)


@pytest.mark.parametrize(("site", "tp", "connections"), [("h100", 1, "32"), ("h100", 2, "1"), ("gb200", 2, "32")])
def test_connections_before_blackwell_with_tensor_parallelism(site: str, tp: int, connections: str) -> None:
    # NVIDIA/Megatron-LM@d98e8a64:megatron/training/arguments.py demands 1 on pre-Blackwell GPUs with TP or CP.
    for arm in plan(site=site, sizes={"tp": tp, "etp": 1}).arms:
        assert arm.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == connections
        assert arm.megatron_lm.startswith(f"CUDA_DEVICE_MAX_CONNECTIONS={connections} ")


def test_a_model_that_sizes_do_not_describe_leaves_its_arguments_to_the_reader() -> None:
    found = plan(model="nemotron-3-nano-30b-a3b")
    assert all(" $MODEL_ARGS " in arm.megatron_lm for arm in found.arms)
    assert any("its own model arguments" in note for note in found.notes)


def test_hybridep_carries_its_domain_in_both_forms() -> None:
    baseline, winner, _ = plan(Choice(dispatcher="hybridep", knobs={"num_sms": 32})).arms
    assert "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8 torchrun" in winner.megatron_lm
    assert "env_vars.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8" in winner.bridge
    assert "HYBRID_EP" not in baseline.megatron_lm + baseline.bridge


def test_nothing_to_accept_where_megatron_would_run_the_same() -> None:
    workload = load_workload("qwen3-30b-a3b", ep=16)
    hierarchical = Choice(dispatcher="hierarchical")
    assert ab_plan(BASELINE, Choice(dispatcher="alltoall", knobs={"form": "p2p"}), workload) is None
    assert ab_plan(BASELINE, hierarchical, workload, fallback=BASELINE) is None
    assert ab_plan(BASELINE, hierarchical, workload) is None
    assert ab_plan(hierarchical, BASELINE, workload) is None


def test_a_fallback_stands_in_for_what_megatron_does_not_ship() -> None:
    found = plan(Choice(dispatcher="hierarchical"), fallback=DEEPEP)
    assert [arm.choice for arm in found.arms] == [BASELINE, DEEPEP, DEEPEP]
    assert any("ships no dispatcher 'hierarchical'" in note for note in found.notes)
