"""The measurement inside the ranks: fit tokens, build arms, then interleaved visits for every routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from moe_dispatch.bench.arms import Arm, build_arm, make_dispatcher
from moe_dispatch.bench.events import ArmMemory, ArmReady, Event, Finished, Fitted, RoutingCounted, Started, Visit
from moe_dispatch.bench.memory import largest
from moe_dispatch.bench.plan import PHASES, BenchPlan
from moe_dispatch.bench.rank import Rank
from moe_dispatch.bench.steps import DTYPES, Clock, ExchangeStep, LayerStep, Step
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.evidence.record import Iteration, Traffic
from moe_dispatch.moe.layer import MoELayer
from moe_dispatch.workload.traffic import count_rows

TOKEN_STEP = 64
_CALIBRATION_RUNS = 2

Report = Callable[[Event], None]


def measure(plan: BenchPlan, rank: Rank, report: Report) -> None:
    """Run the whole plan; collective. `report` is called on every rank, in the same order."""
    report(Started(host_of_rank=rank.hosts, site=rank.site_fields(), stack=rank.stack_fields(), labels=rank.labels()))
    bench = _Bench(plan, rank, report)
    tokens = bench.fit_tokens()
    arms = bench.build_arms(tokens)
    for routing in plan.routings if arms else ():
        bench.run_routing(routing, tokens, arms)
    for arm in arms.values():
        arm.dispatcher.close()
    rank.progress.at("end")
    report(Finished())


def tokens_for_budget(plan: BenchPlan, calibration_us: float, calibrated_tokens: int) -> int:
    """Tokens per rank whose iterations fit the plan's budget, assuming time proportional to tokens.

    Fixed costs make that an overestimate of the time, so the budget is kept, not filled. Never below
    `min_tokens`, never above `tokens_per_rank`, a multiple of 64 in between.
    """
    least = min(plan.min_tokens, plan.tokens_per_rank)
    if plan.time_budget_s is None:
        return plan.tokens_per_rank
    runs = len(plan.routings) * len(plan.arms) * (plan.warmup + plan.planned_iterations)
    affordable = int(plan.time_budget_s * 1e6 / runs / max(calibration_us, 1.0) * calibrated_tokens)
    if affordable >= plan.tokens_per_rank:
        return plan.tokens_per_rank
    return max(least, affordable // TOKEN_STEP * TOKEN_STEP)


class _Bench:
    def __init__(self, plan: BenchPlan, rank: Rank, report: Report) -> None:
        self.plan = plan
        self.rank = rank
        self.report = report
        self.clock = Clock(rank.device)
        self.layer: MoELayer | None = None

    def make_step(self, routing: str, tokens: int, dispatcher: Dispatcher) -> Step:
        """Data of this rank for one routing, and once the layer. No arm is to blame if this fails."""
        self.rank.progress.at("prepare", None, routing)
        if self.plan.level == "exchange":
            return ExchangeStep(self.plan, routing, tokens, self.rank.rank, self.rank.device)
        if self.layer is None:
            self.layer = MoELayer(self.plan.model, dispatcher, seed=self.plan.seed)
        return LayerStep(self.plan, self.layer, routing, tokens, self.rank.rank)

    def fit_tokens(self) -> int:
        """Tokens per rank of this launch, the same on every rank; collective."""
        plan = self.plan
        least = min(plan.min_tokens, plan.tokens_per_rank)
        if plan.fitted_tokens is not None:
            tokens, calibration = plan.fitted_tokens, None
        elif plan.time_budget_s is None or least == plan.tokens_per_rank:
            tokens, calibration = plan.tokens_per_rank, None
        else:
            calibration = self._calibrate(least)
            tokens = tokens_for_budget(plan, calibration, least)
        self.report(Fitted(tokens=tokens, calibration_us=calibration))
        return tokens

    def _calibrate(self, tokens: int) -> float:
        """Microseconds of the baseline's last iteration on the slowest rank."""
        self.rank.progress.at("calibrate", 0, self.plan.routings[0])
        dispatcher = make_dispatcher(self.plan, self.plan.arms[0], self.rank, tokens)
        step = self.make_step(self.plan.routings[0], tokens, dispatcher)
        self.rank.progress.at("calibrate", 0, self.plan.routings[0])
        total = 0.0
        for _ in range(_CALIBRATION_RUNS):
            self.rank.barrier()
            total = self.clock.run(step, dispatcher)[2]
        dispatcher.close()
        return max(self.rank.gather(total))

    def build_arms(self, tokens: int) -> dict[int, Arm]:
        """Arms that may be timed, by index."""
        arms = {}
        for index in range(len(self.plan.arms)):
            arm, event = build_arm(self.plan, index, self.rank, tokens)
            self.report(event)
            if arm is not None and isinstance(event, ArmReady):
                arms[index] = arm
        return arms

    def touch_common(self, routing: str, step: Step, tokens: int, index: int) -> None:
        """One pass through a dispatcher that is thrown away, so that no arm's memory account is charged for what all
        share: code, gradients, and the caches of compute kernels for the shapes of this routing."""
        self.rank.progress.at("warmup", index, routing)
        dispatcher = make_dispatcher(self.plan, self.plan.arms[index], self.rank, tokens)
        self.clock.run(step, dispatcher)
        dispatcher.close()

    def run_routing(self, routing: str, tokens: int, arms: dict[int, Arm]) -> None:
        """Count, warm up, and visit the arms in interleaved order."""
        plan, rank = self.plan, self.rank
        step = self.make_step(routing, tokens, next(iter(arms.values())).dispatcher)
        self.report(RoutingCounted(routing=routing, traffic=self._count(step)))
        self.touch_common(routing, step, tokens, next(iter(arms)))
        for index, arm in arms.items():
            with arm.memory.step():
                for turn in range(plan.warmup):
                    rank.progress.at("warmup", index, routing, turn)
                    rank.barrier()
                    self.clock.run(step, arm.dispatcher)
            memory = largest(rank.gather(arm.memory.as_memory()))
            self.report(ArmMemory(routing=routing, arm=index, memory=memory))
        for visit in range(plan.visits):
            for index in plan.visit_order(visit):
                if index in arms:
                    self._visit(routing, step, arms[index], visit)

    def _visit(self, routing: str, step: Step, arm: Arm, visit: int) -> None:
        plan, rank = self.plan, self.rank
        times = torch.zeros(plan.iterations, len(PHASES), dtype=torch.float64)
        for turn in range(plan.iterations):
            rank.progress.at("measure", arm.index, routing, visit * plan.iterations + turn)
            rank.barrier()
            times[turn] = torch.tensor(self.clock.run(step, arm.dispatcher), dtype=torch.float64)
        everyone = rank.gather_times(times)
        top = everyone.amax(0)
        slowest = everyone[:, :, PHASES.index("total")].argmax(0)
        iterations = tuple(
            Iteration(
                pass_index=visit,
                latency_us={phase: round(float(top[turn, column]), 3) for column, phase in enumerate(PHASES)},
                slowest_rank=int(slowest[turn]),
            )
            for turn in range(plan.iterations)
        )
        self.report(Visit(routing=routing, arm=arm.index, visit=visit, iterations=iterations))

    def _count(self, step: Step) -> Traffic:
        """Rows of the ids in use, over all ranks."""
        ids_by_rank = self.rank.gather(step.ids.cpu().numpy())
        counts = count_rows(ids_by_rank, self.plan.model.num_experts, self.rank.ranks_per_domain)
        row_bytes = self.plan.model.dispatch_width * DTYPES[self.plan.dtype].itemsize
        return Traffic(row_bytes=row_bytes, **asdict(counts))
