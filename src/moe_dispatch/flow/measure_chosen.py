"""`bench`: measure chosen dispatchers under one contract and summarise, without a verdict."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from moe_dispatch.bench.plan import Level
from moe_dispatch.core.choice import Choice
from moe_dispatch.evidence.ids import new_session_id
from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.evidence.store import Store
from moe_dispatch.flow.choices import parse_choice
from moe_dispatch.flow.events import Listener
from moe_dispatch.flow.measure import Session, fit_tokens, leading
from moe_dispatch.flow.request import MeasureRequest
from moe_dispatch.flow.setup import Setup, follow_leader, prepare
from moe_dispatch.flow.stages import StageSite, arm_of, stack_fields, stage_plan

STAGE = "bench"


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One arm under one routing, over its ok launches. Times are medians over all iterations, in milliseconds.

    Fields:
        status: `ok`, or the status of the attempts without timing.
        spread: (largest - smallest launch median) over the median; None with one launch.
    """

    choice: Choice
    routing: str
    status: str
    launches: int
    iterations: int = 0
    total_ms: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    spread: float | None = None
    memory_bytes: int | None = None
    labels: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Records of the session, their summary, where they are, and the tokens per rank that were run."""

    session: str
    store: str
    tokens: int | None
    records: tuple[RunRecord, ...]
    rows: tuple[BenchRow, ...]


def run_chosen(
    request: MeasureRequest, level: Level, passes: tuple[int, int, int], listener: Listener
) -> BenchResult | str:
    """Measure the request's dispatchers (all that have an adapter and pass their gate, if it names none).

    Args:
        passes: (warm-up, visits, iterations of a visit).

    Returns:
        The result; on a node other than 0 the text that node 0 published.

    Raises:
        MoeDispatchError: one of its classes, for anything expected.
    """
    try:
        if not request.leads:
            return follow_leader(request, listener)
        setup = prepare(request, listener)
        store = Store(request.store_path)
        store.check_writable()
        shared = StageSite(
            session=new_session_id(),
            device=setup.device,
            world=setup.world,
            ranks_per_domain=request.ranks_per_domain,
            tokens=fit_tokens(request, setup) if level == "layer" else None,
            site={},
            stack=stack_fields(setup.stack),
        )
        arms = [arm_of(setup.specs[choice.dispatcher], choice) for choice in chosen_arms(request, setup)]
        plan = stage_plan(STAGE, level, arms, setup.workload, setup.routings, shared, passes)
        if setup.device == "cpu" and level == "exchange":
            plan = plan.model_copy(update={"time_budget_s": request.budget_s / request.launches})
        with leading(setup, listener) as leader:
            session = Session(request, setup, shared, store, leader.run if leader else None, listener)
            records = session.bench(plan, request.launches)
            result = BenchResult(
                session=shared.session,
                store=str(store.path),
                tokens=next((record.contract.workload["tokens_per_rank"] for record in records), None),
                records=tuple(records),
                rows=summarise(records),
            )
            if leader:
                leader.finish(f"session {result.session}: {len(records)} records on node 0")
        return result
    finally:
        listener.close()


def chosen_arms(request: MeasureRequest, setup: Setup) -> list[Choice]:
    """The choices to measure, in the order they were named; the simplest first when none is."""
    if request.dispatchers:
        return [parse_choice(text) for text in request.dispatchers]
    return [
        Choice(dispatcher=name)
        for name, spec in setup.specs.items()
        if spec.target is not None and setup.gates[name].available and not spec.experimental
    ]


def summarise(records: Sequence[RunRecord]) -> tuple[BenchRow, ...]:
    """One row for each (arm, routing), fastest first inside a routing; arms without timing at the end."""
    groups: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        groups[str(record.contract.workload["routing"]), record.choice.label].append(record)
    rows = [_row(routing, group) for (routing, _), group in groups.items()]
    order = {routing: index for index, (routing, _) in enumerate(groups)}
    return tuple(sorted(rows, key=lambda row: (order[row.routing], row.total_ms is None, row.total_ms or 0.0)))


def _row(routing: str, group: Sequence[RunRecord]) -> BenchRow:
    timed = [record for record in group if record.status is RunStatus.OK]
    if not timed:
        last = group[-1]
        return BenchRow(
            choice=last.choice, routing=routing, status=last.status.value, launches=len(group), reason=last.reason
        )
    medians = [_median(record, "total") for record in timed]
    middle = statistics.median(medians)
    memory = [
        r.memory.device_used_delta_bytes for r in timed if r.memory and r.memory.device_used_delta_bytes is not None
    ]
    return BenchRow(
        choice=timed[0].choice,
        routing=routing,
        status=RunStatus.OK.value,
        launches=len(timed),
        iterations=sum(len(r.performance.iterations) for r in timed if r.performance),
        total_ms=middle,
        forward_ms=statistics.median(_median(record, "forward") for record in timed),
        backward_ms=statistics.median(_median(record, "backward") for record in timed),
        spread=(max(medians) - min(medians)) / middle if len(medians) > 1 else None,
        memory_bytes=max(memory) if memory else None,
        labels=timed[0].labels,
    )


def _median(record: RunRecord, phase: str) -> float:
    assert record.performance is not None
    return statistics.median(entry.latency_us[phase] for entry in record.performance.iterations) / 1e3
