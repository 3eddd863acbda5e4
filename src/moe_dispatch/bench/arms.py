"""Arms inside the ranks: built, checked by the oracle on the real group, or refused by all ranks together."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata

from moe_dispatch.bench.classify import ErrorKind, error_kind, status_of
from moe_dispatch.bench.events import ArmReady, ArmRefused
from moe_dispatch.bench.memory import MemoryAccount
from moe_dispatch.bench.plan import ArmPlan, BenchPlan
from moe_dispatch.bench.rank import Rank
from moe_dispatch.bench.steps import DTYPES
from moe_dispatch.core.errors import MissingDependency, MoeDispatchError
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.dispatch.reference import OracleReport, check_dispatcher
from moe_dispatch.evidence.record import Correctness, RunStatus


class Arm:
    """A dispatcher that passed the oracle."""

    def __init__(self, index: int, dispatcher: Dispatcher, memory: MemoryAccount) -> None:
        self.index = index
        self.dispatcher = dispatcher
        self.memory = memory


def make_dispatcher(plan: BenchPlan, arm: ArmPlan, rank: Rank, tokens: int) -> Dispatcher:
    """Import the arm's class and construct it for `tokens` a rank; collective.

    Raises:
        MissingDependency: the module or class cannot be imported.
        UsageError, UnsupportedByBackend: as `Dispatcher` says.
    """
    module_name, _, class_name = arm.target.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise MissingDependency(
            f"{arm.target} cannot be imported: {error}", "install what the backend needs"
        ) from error
    shape = plan.model
    dispatcher: Dispatcher = kind(
        rank.group,
        shape.num_experts,
        shape.dispatch_width,
        shape.topk,
        tokens,
        DTYPES[plan.dtype],
        rank.device,
        arm.choice.knobs,
    )
    return dispatcher


def build_arm(plan: BenchPlan, index: int, rank: Rank, tokens: int) -> tuple[Arm | None, ArmReady | ArmRefused]:
    """Construct one arm and run the oracle; collective. Returns the arm, or None with the refusal all ranks agreed on.

    Exceptions that are not this package's own pass through: the ranks may be out of step then, so the launch must end.
    """
    rank.progress.at("build", index)
    memory = MemoryAccount(rank.device)
    dispatcher: Dispatcher | None = None
    report: OracleReport | None = None
    problem: MoeDispatchError | None = None
    try:
        with memory.step():
            dispatcher = make_dispatcher(plan, plan.arms[index], rank, tokens)
    except MoeDispatchError as error:
        problem = error
    refused = _agree(index, rank, problem)
    if refused is not None:
        return None, refused
    assert dispatcher is not None
    rank.progress.at("oracle", index)
    try:
        report = check_dispatcher(dispatcher, plan.seed)
    except MoeDispatchError as error:
        problem = error
    refused = _agree(index, rank, problem)
    if refused is not None:
        return None, refused
    assert report is not None
    correctness = Correctness(
        passed=report.passed,
        checks=dict(report.checks),
        max_error=report.max_error,
        bound=report.bound,
        detail=report.detail,
    )
    if not all(rank.gather(report.passed)):
        return None, ArmRefused(
            arm=index,
            status=RunStatus.INCORRECT,
            reason=f"the oracle found wrong results: {report.detail or 'on another rank'}",
            fix="do not use this dispatcher here; report it with the log of this launch",
            correctness=correctness.model_copy(update={"passed": False}),
        )
    provider, version = _provider(dispatcher)
    ready = ArmReady(arm=index, correctness=correctness, provider=provider, provider_version=version)
    return Arm(index, dispatcher, memory), ready


def _agree(index: int, rank: Rank, problem: MoeDispatchError | None) -> ArmRefused | None:
    """Exchange errors; the error file stays until all ranks have answered, in case some hang where this one refused."""
    mine: tuple[str, str, str] | None = None
    if problem is not None:
        kind = error_kind(problem)
        mine = (kind.value, problem.message, problem.fix)
        rank.progress.fail(*mine)
    everyone = rank.gather(mine)
    rank.progress.forgive()
    refusals = [(at, entry) for at, entry in enumerate(everyone) if entry is not None]
    if not refusals:
        return None
    at, (kind_name, message, fix) = refusals[0]
    alone = "" if len(refusals) == rank.world else f"rank {at} on {rank.hosts[at]}: "
    return ArmRefused(arm=index, status=status_of(ErrorKind(kind_name)), reason=alone + message, fix=fix)


def _provider(dispatcher: Dispatcher) -> tuple[str, str]:
    """What really runs: `provider` and `provider_version` if the adapter has them, else its class and distribution."""
    kind = type(dispatcher)
    name = str(getattr(dispatcher, "provider", f"{kind.__module__}.{kind.__qualname__}"))
    given = getattr(dispatcher, "provider_version", None)
    if given is not None:
        return name, str(given)
    package = kind.__module__.partition(".")[0]
    known = getattr(sys.modules.get(package), "__version__", None)
    if known is not None:
        return name, str(known)
    try:
        return name, metadata.version(package)
    except metadata.PackageNotFoundError:
        return name, ""
