"""The matched plan: what its arms share, what it leaves out, and its scripts run for real with a stand-in trainer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.core.registry import load_backends
from moe_dispatch.megatron.inputs.read import Declared, read_config
from moe_dispatch.megatron.lint import lint
from moe_dispatch.megatron.plan.build import differences, matched_plan
from moe_dispatch.megatron.plan.model import STAGES, MatchedPlan, read_plan
from moe_dispatch.megatron.plan.scripts import write_plan
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.workload.workload import load_workload

BASELINE = Choice(dispatcher="alltoall")
COMPARED = [Choice(dispatcher=name) for name in ("deepep", "hybridep", "ncclep", "hierarchical")]


def plan_for(site: str = "h100", nodes: int = 2, ep: int = 16, **given: object) -> MatchedPlan:
    where = declared_site(site, nodes)
    workload = load_workload("qwen3-30b-a3b", ep=ep, world=where.ranks, global_batch=1024)
    return matched_plan(BASELINE, COMPARED, load_backends(), workload, where, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-bridge"])
def test_arms_differ_only_in_the_dispatcher_and_what_it_forces(framework: str) -> None:
    allowed = ("token_dispatcher_type", "flex_dispatcher", "deepep_num_sms", "hybridep_num_sms", "NUM_OF_HYBRID_EP")
    plan = plan_for(framework=framework)
    for stage in STAGES:
        first, *others = plan.arms_of(stage)
        assert first.differs == ()
        assert others
        for arm in others:
            assert arm.differs
            for entry in arm.differs:
                assert any(word in entry.replace("-", "_") for word in allowed), entry
            assert arm.differs == differences(first.command, arm.command, first.environment, arm.environment)


def test_a_changed_learning_rate_would_show_as_a_difference() -> None:
    arm = plan_for().arms_of("decide")[0]
    other = tuple("2e-4" if word == "1e-4" else word for word in arm.command)
    assert differences(arm.command, other, {}, {"A": "1"}) == ("--lr: 1e-4 -> 2e-4", "A: absent -> 1")
    assert differences(("x.py", "model.a=1"), ("x.py", "--flag", "model.a=2"), {}, {}) == (
        "model.a: 1 -> 2",
        "--flag: absent -> set",
    )


def test_every_launch_visits_its_arms_forwards_and_backwards() -> None:
    plan = plan_for(launches=3)
    runs = plan.runs_of("decide")
    arms = [arm.name for arm in plan.arms_of("decide")]
    assert [run.arm for run in runs] == [*arms, *reversed(arms)] * 3
    assert len({run.log for run in plan.runs}) == len(plan.runs)


def test_stages_have_the_steps_and_routing_they_are_for() -> None:
    plan = plan_for()
    accepted, natural = plan.arms_of("accept")[0], plan.arms_of("natural")[0]
    assert accepted.steps - plan.warm_up_steps >= 50
    assert "--moe-router-force-load-balancing" in accepted.command
    assert "--moe-router-force-load-balancing" not in natural.command
    swept = {arm.choice.knobs["num_sms"] for arm in plan.arms_of("screen") if arm.choice.dispatcher == "hybridep"}
    assert swept == set(load_backends()["hybridep"].knobs["num_sms"].sweep)


def test_a_fixed_knob_is_not_screened_and_not_untuned() -> None:
    where = declared_site("h100", 2)
    workload = load_workload("qwen3-30b-a3b", ep=16, world=16)
    fixed = [Choice(dispatcher="hybridep", knobs={"num_sms": 24})]
    plan = matched_plan(BASELINE, fixed, load_backends(), workload, where)
    assert plan.arms_of("screen") == ()
    assert plan.arms_of("decide")[1].untuned == ()
    assert plan_for().arms_of("decide")[1].untuned == ("num_sms",)


def test_backends_without_an_arm_are_named_with_the_reason() -> None:
    plan = plan_for()
    assert "0.19" in plan.left_out["ncclep"]
    assert "ships no such dispatcher" in plan.left_out["hierarchical"]
    assert "ncclep" not in plan_for(core_version="0.20").left_out


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-bridge"])
def test_an_arm_that_lint_calls_wrong_is_left_out(framework: str) -> None:
    bridge = plan_for("gb200", 4, 16, framework=framework)
    assert "GB200" in bridge.left_out["deepep"]
    assert [arm.choice.dispatcher for arm in bridge.arms_of("decide")] == ["alltoall", "hybridep"]
    assert "deepep" not in plan_for(framework=framework).left_out


RELEASES = ["0.16", "0.17", "0.18", "0.19", "0.20"]


@pytest.mark.parametrize(
    ("framework", "version"),
    # Bridge's recipes of today hold a field that 0.16 does not have.
    [("megatron-lm", version) for version in RELEASES] + [("megatron-bridge", version) for version in RELEASES[1:]],
)
@pytest.mark.parametrize(("site", "nodes", "ep"), [("h100", 2, 16), ("h100", 1, 8), ("gb200", 16, 64), ("b200", 4, 8)])
def test_every_arm_reads_back_without_an_error_or_a_warning(
    site: str, nodes: int, ep: int, framework: str, version: str
) -> None:
    where = declared_site(site, nodes)
    plan = plan_for(site, nodes, ep, framework=framework, core_version=version)
    assert len(plan.arms) > 3
    for arm in plan.arms:
        declared = Declared(core_version=version, world_size=where.ranks, environment=arm.environment)
        result = lint(read_config(arm.command, declared), where)
        assert [f.message for f in result.findings if f.severity is not Severity.INFO] == []
        backend = arm.choice.dispatcher if arm.choice.dispatcher != "alltoall" else None
        assert result.effective is not None
        assert result.effective.backend == backend


def test_cost_is_the_runs_times_their_time() -> None:
    plan = plan_for(step_seconds=20.0, startup_seconds=100.0, launches=5)
    decide = next(cost for cost in plan.costs if cost.stage == "decide")
    assert decide.runs == 5 * 2 * 3
    assert decide.gpu_hours == pytest.approx((30 * (100 + 30 * 20) * 16 / 3600,) * 2, abs=0.01)
    bounded = next(cost for cost in plan_for().costs if cost.stage == "decide")
    assert bounded.gpu_hours[0] < bounded.gpu_hours[1]


@pytest.mark.parametrize(("given", "what"), [({"launches": 0}, "launches 0"), ({"step_seconds": -1.0}, "-1.0")])
def test_impossible_numbers_are_refused(given: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        plan_for(**given)


def stand_in(folder: Path, script: str) -> dict[str, str]:
    """An environment whose `torchrun` is `script`."""
    binaries = folder / "bin"
    binaries.mkdir()
    (binaries / "torchrun").write_text(f"#!/usr/bin/env bash\n{script}\n")
    (binaries / "torchrun").chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    return kept | {"PATH": f"{binaries}:{os.environ['PATH']}", "MEGATRON_LM": str(folder)}


def test_the_scripts_run_every_arm_keep_the_status_and_repeat_only_what_failed(tmp_path: Path) -> None:
    out = tmp_path / "plan"
    plan = plan_for("h100", 1, 8, launches=1)
    write_plan(plan, out)
    assert read_plan(out) == plan
    trainer = 'echo "$NODE_RANK $CUDA_DEVICE_MAX_CONNECTIONS $*"; [[ "$*" == *deepep* && ! -e ok ]] && exit 3; exit 0'
    env = stand_in(tmp_path, trainer)
    first = subprocess.run([str(out / "run.sh"), "decide"], env=env, capture_output=True, text=True, check=False)
    assert first.returncode == 1
    assert "status 3" in first.stderr
    logs = {run.log: (out / run.log).read_text() for run in plan.runs_of("decide")}
    for run in plan.runs_of("decide"):
        assert ("--moe-flex-dispatcher-backend hybridep" in logs[run.log]) == ("hybridep" in run.arm)
        assert logs[run.log].startswith("0 32 --nproc-per-node 8 --nnodes 1 --node-rank 0")
    (tmp_path / "ok").touch()
    second = subprocess.run([str(out / "run.sh"), "decide"], env=env, capture_output=True, text=True, check=False)
    assert second.returncode == 0
    assert second.stdout.count("done before") == 4
    assert len(list((out / "logs/decide").glob("*.failed-*"))) == 2
    accept = subprocess.run(
        [str(out / "run.sh"), "accept", "hybridep"], env=env, capture_output=True, text=True, check=True
    )
    assert accept.stdout.count("accept-hybridep") > 0
    assert "deepep" not in accept.stdout.replace("hybridep", "")
    unknown = subprocess.run([str(out / "run.sh"), "tune"], env=env, capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "screen" in unknown.stderr


def test_a_hung_run_ends_at_its_limit_and_the_others_go_on(tmp_path: Path) -> None:
    out = tmp_path / "plan"
    plan = plan_for("h100", 1, 8, launches=1)
    write_plan(plan, out)
    env = stand_in(tmp_path, '[[ "$*" == *hybridep* ]] && exec sleep 60; echo fine') | {"RUN_TIMEOUT": "1"}
    done = subprocess.run([str(out / "run.sh"), "decide"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    status = {run.arm: (out / f"{run.log}.status").read_text().strip() for run in plan.runs_of("decide")}
    assert status == {"decide-alltoall": "0", "decide-deepep": "0", "decide-hybridep": "124"}


def test_several_nodes_need_an_allocation(tmp_path: Path) -> None:
    write_plan(plan_for(), tmp_path / "plan")
    env = stand_in(tmp_path, "exit 0")
    done = subprocess.run(
        [str(tmp_path / "plan/run.sh"), "decide"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "job.sbatch" in done.stderr
    assert "#SBATCH --nodes=2" in (tmp_path / "plan/job.sbatch").read_text()


def test_a_folder_with_something_else_or_with_logs_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(UsageError, match="not empty"):
        write_plan(plan_for(), tmp_path)
    out = tmp_path / "plan"
    write_plan(plan_for(), out)
    write_plan(plan_for(), out)
    (out / "logs").mkdir()
    with pytest.raises(UsageError, match="logs"):
        write_plan(plan_for(), out)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["notes"]


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"schema_version": 9}), json.dumps({"schema_version": 1})])
def test_a_damaged_plan_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json"):
        read_plan(tmp_path)
