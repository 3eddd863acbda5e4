"""The training level inside the ranks: every arm trains the same model from the same weights on the same batches.

Arms run one after the other, each with a fresh model and optimizer; their order turns with the launch. A step's time is
the maximum over ranks, from a barrier to the updated weights.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from moe_dispatch.bench.arms import Arm, build_arm
from moe_dispatch.bench.events import (
    ArmMemory,
    ArmReady,
    ArmRefused,
    Event,
    Finished,
    Fitted,
    ParityChecked,
    Started,
    Trained,
    TrainStep,
)
from moe_dispatch.bench.memory import largest
from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.rank import Rank
from moe_dispatch.bench.train_parity import ParityCheck
from moe_dispatch.bench.train_plan import TrainPlan
from moe_dispatch.bench.train_records import check_parity
from moe_dispatch.evidence.record import Iteration, RunStatus
from moe_dispatch.evidence.training import ExposedCommunication, RankMemory
from moe_dispatch.moe.data import TextBatches
from moe_dispatch.moe.forced import RoutingSource
from moe_dispatch.moe.model import LanguageModel, ModelOptions
from moe_dispatch.moe.optimizer import MasterAdamW, OptimizerOptions
from moe_dispatch.moe.parallel import make_groups
from moe_dispatch.moe.timed import ExchangeClock, TimedDispatcher
from moe_dispatch.moe.trainer import Trainer
from moe_dispatch.workload.training_text import read_text

Report = Callable[[Event], None]


def train(plan: BenchPlan, rank: Rank, report: Report) -> None:
    """Run the whole plan; collective. `report` is called on every rank, in the same order."""
    assert plan.train is not None
    crowded = tuple(label for label in rank.labels() if label != "benchmark_only")  # said for each routing instead
    site = {**rank.site_fields(), "hosts": sorted(set(rank.hosts)), "cpu_affinity": _affinity(rank)}
    report(Started(host_of_rank=rank.hosts, site=site, stack=rank.stack_fields(), labels=crowded))
    report(Fitted(tokens=plan.tokens_per_rank))
    rank.progress.at("prepare")
    level = _TrainingLevel(plan, plan.train, rank, report)
    for index in plan.visit_order(0):
        arm = level.admit(index)
        if arm is None:
            continue
        level.touch_common(arm)
        for routing in plan.routings:
            level.train_arm(arm, routing)
        arm.dispatcher.close()
    rank.progress.at("end")
    report(Finished())


@dataclass(frozen=True)
class _Timing:
    """One step on this rank, milliseconds."""

    total_ms: float
    exchange_ms: float


class _TrainingLevel:
    def __init__(self, plan: BenchPlan, train: TrainPlan, rank: Rank, report: Report) -> None:
        self.plan, self.train, self.rank, self.report = plan, train, rank, report
        self.text, self.text_name = read_text(train.text)
        self.groups = make_groups(rank.group, rank.world)
        self.parity = ParityCheck(plan, train, rank)
        self.touched = False

    def admit(self, index: int) -> Arm | None:
        """Build an arm, let the oracle check it, and hold its first step against the reference."""
        arm, event = build_arm(self.plan, index, self.rank, self.plan.tokens_per_rank)
        self.report(event)
        if arm is None or not isinstance(event, ArmReady):
            return None
        self.rank.progress.at("oracle", index)
        parity = self.parity.of(arm.dispatcher)
        self.report(ParityChecked(arm=index, parity=parity))
        if parity.passed:
            return arm
        correctness = check_parity(event.correctness, parity)
        arm.dispatcher.close()
        self.report(
            ArmRefused(
                arm=index,
                status=RunStatus.INCORRECT,
                reason=correctness.detail,
                fix="do not train with this dispatcher here; report it with the log of this launch",
                correctness=correctness,
            )
        )
        return None

    def touch_common(self, arm: Arm) -> None:
        """Once, a step that is thrown away, so that no arm's memory account is charged for what all share: code and the
        caches of compute kernels."""
        if self.touched:
            return
        self.touched = True
        self.rank.progress.at("warmup", arm.index)
        self._trainer(arm, self.plan.routings[0], ExchangeClock(self.rank.device)).step(0)

    def train_arm(self, arm: Arm, routing: str) -> None:
        """All steps of one arm under one routing."""
        rank = self.rank
        rank.progress.at("prepare", arm.index, routing)
        clock = ExchangeClock(rank.device)
        timings: list[_Timing] = []
        calls: dict[str, int] = {}
        with arm.memory.step():
            trainer = self._trainer(arm, routing, clock)
            for number in range(self.train.steps):
                rank.progress.at("measure", arm.index, routing, number)
                timing, counts = self._step(trainer, clock, arm.index, routing, number)
                timings.append(timing)
                calls = {name: calls.get(name, 0) + counts.get(name, 0) for name in calls | counts}
            memory = self._rank_memory()
            parameters = self._parameters(trainer.model)
            del trainer
        self.report(ArmMemory(routing=routing, arm=arm.index, memory=largest(rank.gather(arm.memory.as_memory()))))
        exposed = self._exposed(timings[self.train.warmup :], calls)
        self.report(
            Trained(routing=routing, arm=arm.index, memory=memory, parameters=parameters, exposed=exposed, calls=calls)
        )

    def _trainer(self, arm: Arm, routing: str, clock: ExchangeClock) -> Trainer:
        plan, train, device = self.plan, self.train, self.rank.device
        options = ModelOptions(
            positions=train.seq_length,
            seed=plan.seed,
            recompute=train.recompute,
            aux_loss_coeff=train.aux_loss_coeff,
        )
        model = LanguageModel(plan.model, TimedDispatcher(arm.dispatcher, clock), options)
        return Trainer(
            model,
            MasterAdamW(model, self.groups, OptimizerOptions(learning_rate=train.learning_rate)),
            self.groups,
            TextBatches(self.text, train.seq_length, seed=plan.seed, device=device, name=self.text_name),
            RoutingSource(routing, plan.model, seed=plan.seed, device=device),
            seq_length=train.seq_length,
            micro_batch=train.micro_batch,
            global_batch=train.global_batch,
        )

    def _step(
        self, trainer: Trainer, clock: ExchangeClock, arm: int, routing: str, number: int
    ) -> tuple[_Timing, dict[str, int]]:
        rank = self.rank
        rank.barrier()
        begin = time.perf_counter()
        result = trainer.step(number)
        if rank.device.type == "cuda":
            torch.cuda.synchronize(rank.device)
        total_ms = (time.perf_counter() - begin) * 1e3
        exchange_ms, counts = clock.take()
        everyone = rank.gather_times(torch.tensor([total_ms, exchange_ms], dtype=torch.float64))
        slowest = int(everyone[:, 0].argmax())
        self.report(
            TrainStep(
                routing=routing,
                arm=arm,
                iteration=Iteration(
                    pass_index=0,
                    latency_us={
                        "total": round(float(everyone[:, 0].max()) * 1e3, 1),
                        "exchange": round(float(everyone[:, 1].max()) * 1e3, 1),
                    },
                    slowest_rank=slowest,
                    step=number + 1,
                ),
                loss=result.loss if math.isfinite(result.loss) else None,
                grad_norm=result.grad_norm if math.isfinite(result.grad_norm) else None,
                updated=result.updated,
            )
        )
        return _Timing(total_ms, exchange_ms), counts

    def _exposed(self, window: list[_Timing], calls: dict[str, int]) -> ExposedCommunication:
        """Means over the window on the rank with the largest share; every call here blocks, so all of it is exposed."""
        span = sum(one.total_ms for one in window) / len(window)
        inside = sum(one.exchange_ms for one in window) / len(window)
        everyone = self.rank.gather((span, inside))
        worst = max(range(len(everyone)), key=lambda index: everyone[index][1] / everyone[index][0])
        span, inside = everyone[worst]
        return ExposedCommunication(
            device=worst,
            span_ms=span,
            communication_ms=inside,
            exposed_ms=inside,
            share=min(1.0, inside / span),
            kernels=calls,
        )

    def _rank_memory(self) -> tuple[RankMemory, ...]:
        """The allocator of every rank after the last step; nothing on a CPU."""
        if self.rank.device.type != "cuda":
            return ()
        device = self.rank.device
        mine = RankMemory(
            rank=self.rank.rank,
            after_iteration=self.train.steps,
            printed_unit="bytes",
            allocated_bytes=torch.cuda.memory_allocated(device),
            max_allocated_bytes=torch.cuda.max_memory_allocated(device),
            reserved_bytes=torch.cuda.memory_reserved(device),
            max_reserved_bytes=torch.cuda.max_memory_reserved(device),
        )
        return tuple(self.rank.gather(mine))

    def _parameters(self, model: LanguageModel) -> dict[str, float]:
        experts = sum(p.numel() for p in model.expert_parameters())
        replicated = sum(p.numel() for p in model.replicated_parameters())
        return {"total": float(replicated + experts * self.rank.world), "per_rank": float(replicated + experts)}


def _affinity(rank: Rank) -> str:
    """CPUs that each rank of a node may use: `all` where nothing is pinned, else the counts by rank."""
    if not hasattr(os, "sched_getaffinity"):
        return "unknown to the system"
    mine = sorted(os.sched_getaffinity(0))
    everyone = rank.gather(mine)
    if all(len(cpus) == os.cpu_count() for cpus in everyone):
        return "all"
    return "; ".join(f"rank {index}: {len(cpus)} CPUs from {cpus[0]}" for index, cpus in enumerate(everyone))
