"""`select`: from a workload to a proven verdict and its configuration, on this machine or over several nodes.

load -> probe -> gate -> candidates -> screen -> decide -> compare -> verdict -> configuration -> report. Everything
that was attempted is in the store before a verdict is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moe_dispatch.bench.plan import ArmPlan
from moe_dispatch.bench.run import Runner
from moe_dispatch.core.choice import KnobValue
from moe_dispatch.decide.contract import check
from moe_dispatch.decide.guide import Candidate, candidates
from moe_dispatch.evidence.ids import new_session_id
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.evidence.store import Store
from moe_dispatch.flow.conclude import Conclusion, conclude, require_writable
from moe_dispatch.flow.events import Listener
from moe_dispatch.flow.gates import record_unavailable
from moe_dispatch.flow.measure import Measured, Session, fit_tokens, leading
from moe_dispatch.flow.plan_only import PlanOnly, plan_only
from moe_dispatch.flow.request import SelectRequest
from moe_dispatch.flow.resume import records_to_resume, require_same_stack
from moe_dispatch.flow.setup import Setup, follow_leader, prepare
from moe_dispatch.flow.stages import (
    BASELINE,
    DECIDE,
    SCREEN,
    StageSite,
    arm_of,
    best_variants,
    stack_fields,
    stage_plan,
    sweep,
)
from moe_dispatch.megatron.version import parse_release


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What a node other than 0 has to say: the text that node 0 published."""

    text: str


def run_select(request: SelectRequest, listener: Listener) -> Conclusion | PlanOnly | Followed:
    """Run a whole `select`.

    Returns:
        The conclusion with its verdict; on a declared site that is not this machine the candidates and the plan; on a
        node other than 0 what node 0 published.

    Raises:
        MoeDispatchError: one of its classes, for anything expected.
        KeyboardInterrupt: interrupted; finished records are in the store.
    """
    parse_release(request.core_version)
    try:
        if not request.measure.leads:
            return Followed(text=follow_leader(request.measure, listener))
        if request.site is not None:
            planned = plan_only(request, listener)
            if planned is not None:
                return planned
        return _lead(request, listener)
    finally:
        listener.close()


def _lead(request: SelectRequest, listener: Listener) -> Conclusion:
    setup = prepare(request.measure, listener)
    store = Store(request.measure.store_path)
    store.check_writable()
    require_writable(Path(request.measure.out))
    earlier = records_to_resume(store) if request.resume else []
    shared = _shared(request, setup, earlier)
    inside = setup.ranks_per_domain or setup.nproc
    found = candidates(setup.workload, setup.site, setup.specs, setup.gates, ranks_per_domain=inside)
    arms = screen_arms(setup, found)
    with leading(setup, listener) as leader:
        runner: Runner | None = leader.run if leader else None
        session = Session(request.measure, setup, shared, store, runner, listener)
        measured = _measure(request, session, arms, earlier)
        listener.close()
        records = [record for record in store.read_all() if record.session == shared.session]
        conclusion = conclude(request, setup, found, records, measured.findings)
        if leader:
            leader.finish(conclusion.statement)
    return conclusion


def _measure(
    request: SelectRequest, session: Session, arms: Sequence[ArmPlan], earlier: Sequence[RunRecord]
) -> Measured:
    setup, shared = session.setup, session.shared
    plan = stage_plan(SCREEN, "exchange", arms, setup.workload, setup.routings, shared)
    if request.resume:
        require_same_stack(earlier, plan)
    record_unavailable(session.store, plan, setup.gates, earlier)
    screened, cost = session.screen(arms)
    check(screened, (), request.attest)  # a field that does not exist is refused now, not after the long stage
    best = best_variants(screened)
    if not best:
        return Measured(best=(), findings=())
    return session.decide(best, cost, [record for record in earlier if record.stage == DECIDE])


def screen_arms(setup: Setup, found: Sequence[Candidate]) -> list[ArmPlan]:
    """Arms of the screening stage: each included candidate, and those the user names, with every swept knob.

    Raises:
        UnsupportedByBackend: a dispatcher that the user names passed its gate and has no adapter. One that did not pass
            is left out here and recorded as unavailable: it must not stop the others.
    """
    arms: list[ArmPlan] = []
    for candidate in found:
        name = candidate.choice.dispatcher
        spec = setup.specs[name]
        asked = setup.chosen.get(name)
        wanted = name == BASELINE or (candidate.included if not setup.chosen else asked is not None)
        if wanted and setup.gates[name].available and (spec.target is not None or asked is not None):
            fixed = {**domain_knob(setup, name), **(asked.knobs if asked else {})}
            arms += [arm_of(spec, choice) for choice in sweep(spec, fixed, one_domain=setup.one_domain)]
    return arms


def _shared(request: SelectRequest, setup: Setup, earlier: Sequence[RunRecord]) -> StageSite:
    shared = StageSite(
        session=earlier[-1].session if earlier else new_session_id(),
        device=setup.device,
        world=setup.world,
        ranks_per_domain=request.measure.ranks_per_domain,
        tokens=fit_tokens(request.measure, setup),
        site={},
        stack=stack_fields(setup.stack),
    )
    settled = [record.contract.workload["tokens_per_rank"] for record in earlier if record.performance is not None]
    return replace(shared, tokens=settled[0]) if settled else shared


def domain_knob(setup: Setup, name: str) -> dict[str, KnobValue]:
    """The domain size the user declared, for a backend that takes one."""
    declared = setup.ranks_per_domain
    return {"domain_size": declared} if declared and "domain_size" in setup.specs[name].knobs else {}
