"""Emitted and planned batch scripts, submitted to a real Slurm with a stand-in for `torchrun`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import load_backends
from moe_dispatch.megatron.emit import emit
from moe_dispatch.megatron.plan.build import matched_plan
from moe_dispatch.megatron.plan.scripts import write_plan
from moe_dispatch.megatron.slurm import slurm_script
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.workload.workload import load_workload
from slurm_cluster import slurm_cluster

SITE = declared_site("h100", 1)
WORKLOAD = load_workload("qwen3-30b-a3b", ep=8, world=8)


def test_a_dispatcher_that_megatron_does_not_ship_has_no_script() -> None:
    with pytest.raises(UsageError, match="hierarchical"):
        slurm_script(emit(Choice(dispatcher="hierarchical")), WORKLOAD, SITE)


def test_forced_routing_stays_out_of_the_training_script() -> None:
    emitted = emit(Choice(dispatcher="hybridep"), None, WORKLOAD, SITE)
    assert emitted.benchmark_only_args
    text = slurm_script(emitted, WORKLOAD, SITE)
    assert "force-load-balancing" not in text
    assert "export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8" in text


@pytest.mark.slurm
def test_scripts_run_in_one_allocation_of_a_real_slurm(tmp_path: Path) -> None:
    cluster, binaries, plan_folder = tmp_path / "slurm", tmp_path / "bin", tmp_path / "plan"
    cluster.mkdir()
    binaries.mkdir()
    (binaries / "torchrun").write_text('#!/usr/bin/env bash\necho "job $SLURM_JOB_ID rank $NODE_RANK args $*"\n')
    (binaries / "torchrun").chmod(0o755)
    plan = matched_plan(
        Choice(dispatcher="alltoall"), [Choice(dispatcher="hybridep")], load_backends(), WORKLOAD, SITE, launches=1
    )
    write_plan(plan, plan_folder)
    (tmp_path / "train.sbatch").write_text(
        slurm_script(emit(Choice(dispatcher="deepep"), None, WORKLOAD, SITE), WORKLOAD, SITE)
    )
    with slurm_cluster(cluster) as env:
        env = env | {"MEGATRON_LM": str(tmp_path), "PATH": f"{binaries}:{env['PATH']}", "TRAINING_ARGS": "--bf16"}
        for folder, arguments in ((plan_folder, ["job.sbatch", "decide"]), (tmp_path, ["train.sbatch"])):
            done = subprocess.run(
                ["sbatch", "--wait", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr + "".join(p.read_text() for p in folder.glob("slurm-*.out"))
    logs = [(plan_folder / run.log).read_text() for run in plan.runs_of("decide")]
    assert len({text.split()[1] for text in logs}) == 1  # the same job, so the same nodes
    assert all(text.split()[3] == "0" for text in logs)
    (printed,) = (path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert "--bf16 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep" in printed
