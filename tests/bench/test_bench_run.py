"""What a stage launches again, what it leaves alone, and what it writes; launches are played by a script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench_helpers import ALLTOALL, HIERARCHICAL, MemoryStore, faulty, tiny_plan

from moe_dispatch.bench.classify import Failure
from moe_dispatch.bench.events import ArmReady, ArmRefused, Event, Finished, Fitted, Started, Visit
from moe_dispatch.bench.launch import LaunchOutcome
from moe_dispatch.bench.plan import ArmPlan, BenchPlan
from moe_dispatch.bench.run import BenchEvent, BenchRequest, run_bench
from moe_dispatch.core.errors import LaunchError
from moe_dispatch.evidence.record import Correctness, Iteration, RunStatus

Script = Callable[[BenchPlan], tuple[list[Event], Failure | None]]
THIRD = faulty("third")
ROUTINGS = ("force_balanced", "zipf:1.0")


def begin(plan: BenchPlan, tokens: int = 32) -> list[Event]:
    started = Started(host_of_rank=("a", "b"), site={"ranks": 2}, stack={"torch": "2"}, labels=("benchmark_only",))
    passed = Correctness(passed=True)
    return [started, Fitted(tokens=tokens), *(ArmReady(arm=i, correctness=passed) for i in range(len(plan.arms)))]


def visits(plan: BenchPlan, routing: str, count: int, arms: range | None = None) -> list[Event]:
    return [
        Visit(
            routing=routing,
            arm=arm,
            visit=visit,
            iterations=tuple(
                Iteration(pass_index=visit, latency_us={"total": 1.0}, slowest_rank=0) for _ in range(plan.iterations)
            ),
        )
        for visit in range(count)
        for arm in arms or range(len(plan.arms))
    ]


def all_good(plan: BenchPlan) -> tuple[list[Event], Failure | None]:
    done = [event for routing in plan.routings for event in visits(plan, routing, plan.visits)]
    return [*begin(plan), *done, Finished()], None


class ScriptedRunner:
    """Plays one script per launch and remembers the plans."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.plans: list[BenchPlan] = []

    def __call__(
        self,
        plan: BenchPlan,
        nproc: int,
        folder: Path,
        *,
        environment: dict[str, str],
        on_event: Callable[[Event], None],
    ) -> LaunchOutcome:
        self.plans.append(plan)
        script = self.scripts.pop(0) if self.scripts else all_good
        events, failure = script(plan)
        for event in events:
            on_event(event)
        return LaunchOutcome(
            events=tuple(events), failure=failure, environment={}, log_tail="", log=str(folder / "none"), wall_s=1.0
        )

    @property
    def launched(self) -> list[tuple[int, list[str], tuple[str, ...]]]:
        return [(p.launch, [a.choice.dispatcher for a in p.arms], p.routings) for p in self.plans]


def request(*arms: ArmPlan, launches: int = 1, **changes: object) -> BenchRequest:
    return BenchRequest(plan=tiny_plan(*arms, routings=ROUTINGS, **changes), launches=launches, nproc=2)


def test_every_arm_and_routing_gets_one_record_a_launch() -> None:
    store, runner = MemoryStore(), ScriptedRunner()
    records = run_bench(request(ALLTOALL, HIERARCHICAL, launches=3), store, runner=runner)
    assert len(records) == len(store.records) == 3 * 2 * 2
    assert {record.status for record in records} == {RunStatus.OK}
    assert [launch for launch, _, _ in runner.launched] == [0, 1, 2]
    assert len({record.run_id for record in records}) == 12
    by_contract = {record.contract.workload["routing"] for record in records}
    assert by_contract == {"force_balanced", "zipf:1"}


def test_tokens_fitted_by_the_first_launch_hold_for_the_others() -> None:
    runner = ScriptedRunner(lambda plan: ([*begin(plan, 16), *all_good(plan)[0][4:]], None))
    records = run_bench(request(ALLTOALL, HIERARCHICAL, launches=2, tokens_per_rank=64), MemoryStore(), runner=runner)
    assert [plan.fitted_tokens for plan in runner.plans] == [None, 16]
    first = [record for record in records if record.launch == 0]
    assert {record.contract.workload["tokens_per_rank"] for record in first} == {16}
    assert all("scaled_tokens" in record.labels for record in first)


def test_failed_arm_is_left_out_and_cut_arms_run_again() -> None:
    crash = Failure(status=RunStatus.CRASHED, reason="rank 1 on b was killed by SIGKILL", arm=1)

    def script(plan: BenchPlan) -> tuple[list[Event], Failure | None]:
        return [*begin(plan), *visits(plan, ROUTINGS[0], plan.visits), *visits(plan, ROUTINGS[1], 1, range(1))], crash

    store, runner = MemoryStore(), ScriptedRunner(script)
    records = run_bench(request(ALLTOALL, HIERARCHICAL, THIRD, launches=2), store, runner=runner)
    assert runner.launched == [
        (0, ["alltoall", "hierarchical", "third"], ROUTINGS),
        (0, ["alltoall", "third"], ROUTINGS[1:]),
        (1, ["alltoall", "third"], ROUTINGS),
    ]
    failed = [record for record in records if record.choice.dispatcher == "hierarchical"]
    assert [(r.status, r.contract.workload["routing"]) for r in failed] == [
        (RunStatus.OK, "force_balanced"),
        (RunStatus.CRASHED, "zipf:1"),
    ]
    assert "no iteration under this routing was finished" in failed[1].reason
    healthy = [record for record in records if record.choice.dispatcher != "hierarchical"]
    assert len(healthy) == 8
    assert {record.status for record in healthy} == {RunStatus.OK}


def test_arm_that_was_complete_when_another_failed_is_not_measured_twice() -> None:
    crash = Failure(status=RunStatus.OOM, reason="rank 0 on a ran out of memory", arm=1)

    def script(plan: BenchPlan) -> tuple[list[Event], Failure | None]:
        done = [event for routing in ROUTINGS for event in visits(plan, routing, plan.visits, range(1))]
        return [*begin(plan), *done, *visits(plan, ROUTINGS[0], 1, range(1, 2))], crash

    runner = ScriptedRunner(script)
    records = run_bench(request(ALLTOALL, HIERARCHICAL), MemoryStore(), runner=runner)
    assert len(runner.plans) == 1
    assert [(r.choice.dispatcher, r.status) for r in records] == [
        ("alltoall", RunStatus.OK),
        ("alltoall", RunStatus.OK),
        ("hierarchical", RunStatus.OOM),
        ("hierarchical", RunStatus.OOM),
    ]
    assert [len(r.partial.iterations) if r.partial else 0 for r in records[2:]] == [4, 0]


def test_refused_arm_costs_no_launch() -> None:
    refusal = ArmRefused(arm=1, status=RunStatus.UNSUPPORTED, reason="no bf16", fix="use float32")

    def script(plan: BenchPlan) -> tuple[list[Event], Failure | None]:
        done = [event for routing in ROUTINGS for event in visits(plan, routing, plan.visits, range(1))]
        return [*begin(plan)[:3], refusal, *done, Finished()], None

    runner = ScriptedRunner(script)
    records = run_bench(request(ALLTOALL, HIERARCHICAL), MemoryStore(), runner=runner)
    assert len(runner.plans) == 1
    refused = records[2:]
    assert [(r.status, r.reason, r.fix) for r in refused] == [(RunStatus.UNSUPPORTED, "no bf16", "use float32")] * 2


def test_resume_measures_only_what_is_missing() -> None:
    store = MemoryStore()
    run_bench(request(ALLTOALL, HIERARCHICAL, launches=2), store, runner=ScriptedRunner())
    lost = store.records.pop(2)
    assert (lost.launch, lost.choice.dispatcher, lost.contract.workload["routing"]) == (
        0,
        "hierarchical",
        "force_balanced",
    )
    runner = ScriptedRunner()
    records = run_bench(request(ALLTOALL, HIERARCHICAL, launches=3), store, runner=runner)
    assert runner.launched == [
        (0, ["alltoall", "hierarchical"], ROUTINGS[:1]),  # not alone: it is compared with what ran beside it
        (2, ["alltoall", "hierarchical"], ROUTINGS),
    ]
    assert {plan.fitted_tokens for plan in runner.plans} == {32}
    assert len(records) == len(store.records) == 13


def test_a_launch_that_was_interrupted_is_repeated_with_all_arms() -> None:
    store, interrupted = MemoryStore(), Failure(status=RunStatus.INTERRUPTED, reason="interrupted by the user")

    def script(plan: BenchPlan) -> tuple[list[Event], Failure | None]:
        done = [event for routing in ROUTINGS for event in visits(plan, routing, plan.visits, range(2))]
        return [*begin(plan), *done], interrupted

    with pytest.raises(KeyboardInterrupt):
        run_bench(request(ALLTOALL, HIERARCHICAL, THIRD), store, runner=ScriptedRunner(script))
    runner = ScriptedRunner()
    run_bench(request(ALLTOALL, HIERARCHICAL, THIRD, launches=2), store, runner=runner)
    assert [names for _, names, _ in runner.launched] == [["alltoall", "hierarchical", "third"]] * 2


def test_an_arm_that_is_new_on_resume_runs_beside_the_baseline() -> None:
    store = MemoryStore()
    run_bench(request(ALLTOALL, HIERARCHICAL, launches=2), store, runner=ScriptedRunner())
    runner = ScriptedRunner()
    for launches in (1, 2):  # launch by launch, as a stage that weighs them against a budget does
        run_bench(request(ALLTOALL, HIERARCHICAL, THIRD, launches=launches), store, runner=runner)
    assert runner.launched == [(launch, ["alltoall", "third"], ROUTINGS) for launch in range(2)]
    processes = {record.processes for record in store.records}
    assert len(processes) == 4
    for one in processes:
        mates = [record for record in store.records if record.processes == one]
        assert {record.choice.dispatcher for record in mates} in ({"alltoall", "hierarchical"}, {"alltoall", "third"})


def test_resume_leaves_failed_arms_alone_and_retries_interrupted_ones() -> None:
    store = MemoryStore()
    interrupted = Failure(status=RunStatus.INTERRUPTED, reason="interrupted by the user")

    def script(plan: BenchPlan) -> tuple[list[Event], Failure | None]:
        return [*begin(plan), *visits(plan, ROUTINGS[0], 1)], interrupted

    refusal = ArmRefused(arm=2, status=RunStatus.INCORRECT, reason="wrong")
    with pytest.raises(KeyboardInterrupt):
        run_bench(
            request(ALLTOALL, HIERARCHICAL, THIRD),
            store,
            runner=ScriptedRunner(lambda plan: ([*script(plan)[0][:4], refusal, *script(plan)[0][5:]], interrupted)),
        )
    assert [r.status for r in store.records] == [RunStatus.INTERRUPTED] * 4 + [RunStatus.INCORRECT] * 2
    assert [len(r.partial.iterations) if r.partial else 0 for r in store.records[:4]] == [4, 0, 4, 0]
    runner = ScriptedRunner()
    records = run_bench(request(ALLTOALL, HIERARCHICAL, THIRD), store, runner=runner)
    assert runner.launched == [(0, ["alltoall", "hierarchical"], ROUTINGS)]
    assert [r.status for r in records] == [RunStatus.INCORRECT] * 2 + [RunStatus.OK] * 4


def test_failure_outside_every_arm_is_a_launch_error() -> None:
    failure = Failure(status=RunStatus.CRASHED, reason="the ranks did not find each other within 5 s", fix="check")
    with pytest.raises(LaunchError, match="did not find each other"):
        run_bench(request(ALLTOALL), MemoryStore(), runner=ScriptedRunner(lambda plan: ([], failure)))


def test_progress_counts_visits_and_names_arms() -> None:
    heard: list[BenchEvent] = []
    run_bench(request(ALLTOALL, HIERARCHICAL, launches=2), MemoryStore(), heard.append, ScriptedRunner())
    seen = [event for event in heard if event.kind == "visit"]
    assert [event.done for event in seen] == list(range(1, 17))
    assert {event.total for event in seen} == {16}
    assert {event.arm for event in seen} == {"alltoall", "hierarchical"}
