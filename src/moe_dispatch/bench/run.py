"""One stage of a session: several launches of several arms, every finished attempt written to the store at once.

An arm that failed is recorded and left out from then on; arms that its failure cut short are launched again without it.
The store is the memory: run again with the same session, and only what is missing is measured, together with what it is
compared with: arms that ran in other processes, maybe hours apart, would only look interleaved.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from pydantic import Field

from moe_dispatch.bench.events import ArmRefused, Event, Fitted, TrainStep, Visit
from moe_dispatch.bench.launch import LaunchOutcome, Master, OnEvent, require_started, run_launch
from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.records import records_of
from moe_dispatch.core.errors import LaunchError, StoreError
from moe_dispatch.evidence.record import Model, RunRecord, RunStatus

RETRIED = (RunStatus.INTERRUPTED, RunStatus.UNAVAILABLE, RunStatus.TRUNCATED)
"""Statuses that a resumed session measures again; every other attempt stands."""

CUT_SHORT = (
    RunStatus.INTERRUPTED,
    RunStatus.CRASHED,
    RunStatus.TIMEOUT,
    RunStatus.OOM,
    RunStatus.TRUNCATED,
)
"""Statuses that end a launch before its other arms are done."""


class BenchRequest(Model):
    """What to measure in one stage.

    Fields:
        plan: the launch to repeat; its `launch` is set for each.
        launches: how many; a winner needs five.
        nproc: ranks started on this node.
        port: port for the ranks' rendezvous on a single host; None picks a free one.
        work_dir: keeps plan, log and progress of every launch; None uses a temporary folder.
        environment: extra variables for the ranks.
    """

    plan: BenchPlan
    launches: int = Field(default=5, ge=1)
    nproc: int = Field(ge=1)
    port: int | None = None
    work_dir: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)


class BenchEvent(Model):
    """Progress for a person.

    Fields:
        kind: `launch`, `tokens`, `visit`, `refused`, `record`.
        done, total: finished and planned visits of this stage.
        arm, routing: what it is about, where it is about one arm.
        detail: text for a log line.
    """

    kind: str
    stage: str
    launch: int
    launches: int
    done: int = 0
    total: int = 0
    arm: str = ""
    routing: str = ""
    detail: str = ""


class RecordStore(Protocol):
    """What is needed of `evidence.store.Store`."""

    def check_writable(self) -> None:
        """Refuse a store that cannot take records."""

    def write(self, record: RunRecord, files: Mapping[str, bytes | Path] | None = None) -> object:
        """Store one record and its files."""

    def read_all(self) -> Iterable[RunRecord]:
        """All records."""


class Runner(Protocol):
    """Runs one launch; `control.Leader.run` does it on several nodes."""

    def __call__(
        self, plan: BenchPlan, nproc: int, folder: Path, *, environment: dict[str, str], on_event: OnEvent
    ) -> LaunchOutcome:
        """Run to the end and return what is left."""


def run_bench(
    request: BenchRequest,
    store: RecordStore,
    on_event: Callable[[BenchEvent], None] | None = None,
    runner: Runner | None = None,
) -> list[RunRecord]:
    """Measure one stage and return its records, those of an earlier, interrupted run included.

    Args:
        store: written after every launch.
        on_event: told about progress.
        runner: how a launch is run; None means on this host alone.

    Raises:
        LaunchError: the ranks did not start or failed outside every arm.
        StoreError: the store cannot be written; said before anything runs, or when it fills up.
        KeyboardInterrupt: the user interrupted; what was finished is in the store, the rest is recorded `interrupted`.
    """
    store.check_writable()
    if request.work_dir is not None:
        return _Stage(request, store, on_event, runner, Path(request.work_dir)).run()
    try:
        folder = Path(tempfile.mkdtemp(prefix="moe-dispatch-"))
    except OSError as error:
        raise StoreError(
            f"no temporary folder can be made: {error.strerror or error}", "set TMPDIR to a folder that can be written"
        ) from error
    keep = False
    try:
        return _Stage(request, store, on_event, runner, folder).run()
    except LaunchError:
        keep = True  # the message names the log in there
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


class _Stage:
    def __init__(
        self,
        request: BenchRequest,
        store: RecordStore,
        on_event: Callable[[BenchEvent], None] | None,
        runner: Runner | None,
        folder: Path,
    ) -> None:
        self.request = request
        self.plan = request.plan
        self.store = store
        self.folder = folder
        self.runner: Runner = runner or self._run_here
        self.on_event = on_event
        self.canonical = {text: self.plan.canonical(text) for text in self.plan.routings}
        session = [record for record in store.read_all() if record.session == self.plan.session]
        mine = [
            r
            for r in session
            if r.stage == self.plan.stage and r.contract.measure.get("level") == self.plan.contract_level
        ]
        self.records = [record for record in mine if record.status not in RETRIED]
        self.failed = {r.choice.label for r in session if r.status not in (*RETRIED, RunStatus.OK)}
        self.cut = {record.launch for record in mine if record.status in CUT_SHORT}
        settled = (r.contract.workload["tokens_per_rank"] for r in self.records)
        self.tokens = next((tokens for tokens in settled if tokens is not None), self.plan.fitted_tokens)
        visits = self.plan.train.steps if self.plan.train is not None else self.plan.visits
        self.total = request.launches * len(self.plan.arms) * len(self.plan.routings) * visits
        self.done = 0

    def run(self) -> list[RunRecord]:
        """All launches."""
        for launch in range(self.request.launches):
            attempt = 0
            while plan := self._next_plan(launch):
                self._tell("launch", launch, detail=", ".join(arm.choice.label for arm in plan.arms))
                self._run_once(plan, self.folder / f"{plan.stage}-{launch:02d}-{attempt}")
                attempt += 1
        return self.records

    def _next_plan(self, launch: int) -> BenchPlan | None:
        """The next set of processes for this launch index, or None when it is complete.

        Routings that lack the same arms share one; in the normal case that is all of them. A launch that was cut short
        is repeated with all arms that work; an arm that is new to a resumed stage runs beside the baseline.
        """
        have = {(r.choice.label, r.contract.workload["routing"]) for r in self.records if r.launch == launch}
        lacking = {
            routing: tuple(
                arm
                for arm in self.plan.arms
                if arm.choice.label not in self.failed and (arm.choice.label, self.canonical[routing]) not in have
            )
            for routing in self.plan.routings
        }
        arms = next((missing for missing in lacking.values() if missing), ())
        if not arms:
            return None
        routings = tuple(routing for routing, missing in lacking.items() if missing == arms)
        mates = self.plan.arms if launch in self.cut else self.plan.arms[:1]
        arms = tuple(
            arm for arm in self.plan.arms if arm in arms or (arm in mates and arm.choice.label not in self.failed)
        )
        return self.plan.model_copy(
            update={"launch": launch, "arms": arms, "routings": routings, "fitted_tokens": self.tokens}
        )

    def _run_once(self, plan: BenchPlan, folder: Path) -> None:
        def heard(event: Event) -> None:
            self._hear(plan, event)

        outcome = self.runner(plan, self.request.nproc, folder, environment=self.request.environment, on_event=heard)
        settled = records_of(plan, outcome)
        for record in settled:
            files: dict[str, bytes | Path] = {}
            if record.status is not RunStatus.OK and Path(outcome.log).is_file():
                files["launch.log"] = Path(outcome.log)
            self.store.write(record, files)
            self.records.append(record)
            if record.status not in (RunStatus.OK, RunStatus.INTERRUPTED):
                self.failed.add(record.choice.label)
            if record.status in CUT_SHORT:
                self.cut.add(record.launch)
            self._tell("record", plan.launch, record.choice.label, detail=record.reason or record.status.value)
        if outcome.failure is not None and outcome.failure.status is RunStatus.INTERRUPTED:
            raise KeyboardInterrupt
        require_started(outcome)
        if not settled:
            raise LaunchError("a launch ended without any result", f"read its log: {outcome.log}\n{outcome.log_tail}")

    def _hear(self, plan: BenchPlan, event: Event) -> None:
        if isinstance(event, Fitted):
            self.tokens = event.tokens
            self._tell("tokens", plan.launch, detail=str(event.tokens))
        elif isinstance(event, Visit | TrainStep):
            self.done += 1
            self._tell("visit", plan.launch, plan.arms[event.arm].choice.label, event.routing)
        elif isinstance(event, ArmRefused):
            self._tell("refused", plan.launch, plan.arms[event.arm].choice.label, detail=event.reason)

    def _tell(self, kind: str, launch: int, arm: str = "", routing: str = "", detail: str = "") -> None:
        if self.on_event is not None:
            self.on_event(
                BenchEvent(
                    kind=kind,
                    stage=self.plan.stage,
                    launch=launch,
                    launches=self.request.launches,
                    done=self.done,
                    total=self.total,
                    arm=arm,
                    routing=routing,
                    detail=detail,
                )
            )

    def _run_here(
        self, plan: BenchPlan, nproc: int, folder: Path, *, environment: dict[str, str], on_event: OnEvent
    ) -> LaunchOutcome:
        master = None if self.request.port is None else Master(address="127.0.0.1", port=self.request.port)
        return run_launch(plan, nproc, folder, master=master, environment=environment, on_event=on_event)
