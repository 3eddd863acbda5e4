"""Runs the stages of a session into the store: gate records, screening, deciding; on one node or leading several."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from moe_dispatch.bench.control import Leader
from moe_dispatch.bench.plan import ArmPlan, BenchPlan
from moe_dispatch.bench.run import BenchEvent, BenchRequest, Runner, run_bench
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.evidence.store import Store
from moe_dispatch.flow import budget
from moe_dispatch.flow.events import Listener
from moe_dispatch.flow.request import MeasureRequest
from moe_dispatch.flow.setup import Setup
from moe_dispatch.flow.stages import DECIDE, SCREEN, Screened, StageSite, arm_of, stage_plan

MIN_TOKENS = 256
"""Tokens per rank that are never undercut: fewer leave experts nearly empty and measure fixed costs only."""

_TOKEN_STEP = 64
_ASSUMED_COST = budget.Cost(start_s=8.0, arm_s=1.5)
_SCREEN_PASSES = (1, 4, 2)
_WARMUP_CPU = 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Outcome of the measuring stages; the records are in the store.

    Fields:
        best: screened variants, baseline first.
        findings: what the budget left out.
    """

    best: tuple[Screened, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class _Afforded:
    """What the deciding stage runs, and what was left out.

    Fields:
        passes: (warm-up, visits, iterations); None takes those for a GPU.
        skew_share: see `budget.DecidePlan`; None where launches are not weighed against the budget.
    """

    arms: Sequence[Screened]
    passes: tuple[int, int, int] | None
    skew_launches: int
    skew_share: float | None = None
    findings: Sequence[Finding] = ()


class Session:
    """One session on the leading node.

    Args:
        shared: what its stages share; its tokens are settled by `fit_tokens`.
        runner: runs one launch; None means on this host alone.
    """

    def __init__(
        self,
        request: MeasureRequest,
        setup: Setup,
        shared: StageSite,
        store: Store,
        runner: Runner | None,
        listener: Listener,
    ) -> None:
        self.request = request
        self.setup = setup
        self.shared = shared
        self.store = store
        self.runner = runner
        self.listener = listener
        self.began = time.monotonic()

    def bench(self, plan: BenchPlan, launches: int) -> list[RunRecord]:
        """Run one stage; see `bench.run.run_bench`."""
        return self._bench(plan, launches, self.listener.measured)

    def screen(self, arms: Sequence[ArmPlan]) -> tuple[list[RunRecord], budget.Cost]:
        """Time every variant on the exchange in one launch; also what starting and building cost."""
        passes = _SCREEN_PASSES if self.shared.device == "cpu" else None
        routings = self.setup.routings[:1]
        plan = stage_plan(SCREEN, "exchange", arms, self.setup.workload, routings, self.shared, passes)
        watch = _CostWatch(len(arms))

        def heard(event: BenchEvent) -> None:
            watch.hear(event)
            self.listener.measured(event)

        return self._bench(plan, 1, heard), watch.cost()

    def decide(self, best: Sequence[Screened], cost: budget.Cost, earlier: Sequence[RunRecord]) -> Measured:
        """Compare the baseline and the best variants on the whole layer, in as many arms as the budget allows.

        Launches run one at a time: what the first one really took decides how many also repeat the skewed routing.

        Args:
            earlier: deciding records of an interrupted run of this session; their passes are kept.
        """
        afforded = self._afford(best, cost, earlier)
        specs, workload, routings = self.setup.specs, self.setup.workload, self.setup.routings
        arms = [arm_of(specs[entry.choice.dispatcher], entry.choice) for entry in afforded.arms]
        plan = stage_plan(DECIDE, "layer", arms, workload, routings, self.shared, afforded.passes)
        plain = plan.model_copy(update={"routings": routings[:1]})
        launches, skewed = self.request.launches, afforded.skew_launches
        show = _Overall(self.listener, launches, len(arms) * plan.visits, launches + skewed)
        for launch in range(launches):
            begin = time.monotonic()
            # The store is the memory of a stage: launches that are there already are not repeated.
            self._bench(plan if launch < skewed else plain, launch + 1, show.measured)
            if launch == 0 and skewed and afforded.skew_share is not None:
                skewed = budget.skew_launches(
                    skewed, launches, self._left(), time.monotonic() - begin, afforded.skew_share
                )
        return Measured(best=tuple(best), findings=tuple(afforded.findings))

    def _left(self) -> float:
        return self.request.budget_s - (time.monotonic() - self.began)

    def _afford(self, best: Sequence[Screened], cost: budget.Cost, earlier: Sequence[RunRecord]) -> _Afforded:
        launches, skewed = self.request.launches, len(self.setup.routings) > 1
        if earlier:
            measure = earlier[0].contract.measure
            ran = {record.choice.label for record in earlier}
            known = {record.choice.dispatcher for record in earlier}
            kept = [entry for entry in best if entry.choice.label in ran or entry.choice.dispatcher not in known]
            passes = (measure["warmup"], measure["visits"], measure["iterations"])
            main = self.setup.workload.routing_spec.canonical
            also = {record.launch for record in earlier if record.contract.workload["routing"] != main}
            return _Afforded(arms=kept, passes=passes, skew_launches=max(1, len(also)) if skewed else 0)
        if self.shared.device == "cuda":
            return _Afforded(arms=best, passes=None, skew_launches=launches if skewed else 0)
        tokens = self.shared.tokens or self.setup.workload.tokens_per_rank
        plan = budget.plan_decide(
            left_s=self._left(),
            launches=launches,
            arms=len(best),
            skewed=skewed,
            iteration_s=layer_seconds(self.setup, tokens, best[0].seconds),
            cost=cost,
        )
        self.listener.note(
            f"deciding on the MoE layer: {plan.arms} arms, {launches} launches ({plan.skew_launches} of them also "
            f"skewed), about {plan.expected_s:.0f} s"
        )
        return _Afforded(
            arms=best[: plan.arms],
            passes=(_WARMUP_CPU, plan.visits, plan.iterations),
            skew_launches=plan.skew_launches,
            skew_share=plan.skew_share,
            findings=[_left_out(entry, best, self.request.budget_s) for entry in best[plan.arms :]],
        )

    def _bench(self, plan: BenchPlan, launches: int, heard: Callable[[BenchEvent], None]) -> list[RunRecord]:
        request = BenchRequest(plan=plan, launches=launches, nproc=self.setup.nproc, port=self._port())
        return run_bench(request, self.store, heard, self.runner)

    def _port(self) -> int | None:
        return self.request.master_port if self.setup.rendezvous is None else None


def fit_tokens(request: MeasureRequest, setup: Setup) -> int | None:
    """Tokens per rank that a CPU can afford in the deciding stage; None runs all that the workload asks for.

    Priced as two arms with the fewest iterations that a verdict takes.
    """
    wanted = setup.workload.tokens_per_rank
    if setup.device == "cuda" or wanted <= MIN_TOKENS:
        return None
    skew_launches = min(budget.LEAST_SKEW_LAUNCHES, request.launches) if len(setup.routings) > 1 else 0
    passes = (request.launches + skew_launches) * (1 + 2 * (1 + budget.LEAST_ITERATIONS))
    fixed = request.launches * (_ASSUMED_COST.start_s + 2 * _ASSUMED_COST.arm_s)
    timed = (1 - budget.SCREEN_SHARE) * request.budget_s - fixed
    affordable = int(timed / (passes * layer_seconds(setup, 1, 0.0)))
    if affordable >= wanted:
        return None
    return max(MIN_TOKENS, affordable // _TOKEN_STEP * _TOKEN_STEP)


def layer_seconds(setup: Setup, tokens: int, exchange_s: float) -> float:
    """Estimated time of one iteration of the layer on a CPU; see `budget.layer_seconds`."""
    cores = setup.site.cores or os.cpu_count() or 1
    return budget.layer_seconds(setup.workload.model, tokens, exchange_s, setup.nproc, cores)


@contextmanager
def leading(setup: Setup, listener: Listener) -> Iterator[Leader | None]:
    """Lead the other nodes, if there are any; an exception inside tells them to stop."""
    if setup.rendezvous is None:
        yield None
        return
    with Leader(setup.rendezvous, setup.nproc, listener.note) as leader:
        yield leader


class _Overall:
    """Progress of a stage that is run launch by launch, counted over all of them."""

    def __init__(self, listener: Listener, launches: int, visits_per_routing: int, routings: int) -> None:
        self._listener = listener
        self._launches = launches
        self._total = visits_per_routing * routings
        self._done = 0

    def measured(self, event: BenchEvent) -> None:
        self._done += event.kind == "visit"
        done = min(self._done, self._total)
        self._listener.measured(
            event.model_copy(update={"launches": self._launches, "done": done, "total": self._total})
        )


class _CostWatch:
    """Reads from progress events how long starting and building took."""

    def __init__(self, arms: int) -> None:
        self._arms = arms
        self._start = time.monotonic()
        self._met: float | None = None
        self._first: float | None = None

    def hear(self, event: BenchEvent) -> None:
        if event.kind == "tokens" and self._met is None:
            self._met = time.monotonic()
        elif event.kind == "visit" and self._first is None:
            self._first = time.monotonic()

    def cost(self) -> budget.Cost:
        if self._met is None or self._first is None:
            return _ASSUMED_COST
        return budget.Cost(start_s=self._met - self._start, arm_s=(self._first - self._met) / self._arms)


def _left_out(entry: Screened, best: Sequence[Screened], budget_s: float) -> Finding:
    return Finding(
        id="left-out-by-budget",
        severity=Severity.WARNING,
        message=f"{entry.choice.label} was screened and not decided: {budget_s:.0f} s do not hold more arms",
        why=f"its exchange took {entry.seconds * 1e3:.1f} ms, {best[1].choice.label}'s {best[1].seconds * 1e3:.1f} ms",
        advice=("give a larger --budget, or name it with --dispatcher",),
        source="measured",
    )
