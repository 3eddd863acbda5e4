"""Starts the ranks of one launch through torchrun, watches them, and leaves no process behind however it ends.

One launch is one set of processes. Results come from the file that rank 0 appends to, failures from exit codes, error
files and positions (`classify.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from moe_dispatch.bench import network, watch
from moe_dispatch.bench.classify import Cause, Failure, classify
from moe_dispatch.bench.events import RESULTS_FILE, Event, Finished, ResultsReader
from moe_dispatch.bench.plan import BenchPlan, Rendezvous
from moe_dispatch.bench.procs import MARKER, kernel_oom_kills, kill_launch, marked_pids
from moe_dispatch.bench.progress import Position, read_errors, read_positions
from moe_dispatch.core.errors import LaunchError, StoreError
from moe_dispatch.evidence.record import Model, RunStatus

PORT_ATTEMPTS = 3
LOG_TAIL_BYTES = 6000
_POLL_S = 0.05
_INHERITED_TORCHRUN = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip

OnEvent = Callable[[Event], None]
ShouldStop = Callable[[], str | None]


class Master(Model):
    """Where the ranks of one launch meet."""

    address: str
    port: int


class LaunchOutcome(Model):
    """What one launch left on this node.

    Fields:
        events: everything rank 0 wrote (empty on nodes other than 0).
        failure: None when all local ranks ended well.
        environment: variables that were set for the ranks.
        survivors: processes that could not be killed (normally none).
        log: path of the launch's log on this node.
    """

    events: tuple[Event, ...]
    failure: Failure | None
    environment: dict[str, str]
    log_tail: str
    log: str
    wall_s: float
    survivors: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether rank 0 reached the end of the plan."""
        return any(isinstance(event, Finished) for event in self.events)


def rank_environment(rendezvous: Rendezvous | None, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Variables set for every rank of this node: one compute thread per rank, and the interface for gloo.

    Raises:
        LaunchError: the rendezvous host cannot be reached, or GLOO_SOCKET_IFNAME names no interface.
    """
    chosen = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        network.require_interfaces(interface)
    if rendezvous is None or rendezvous.nnodes == 1:
        interface = interface or network.interface_towards("127.0.0.1")
    else:
        interface = rendezvous.interface or interface or network.interface_towards(rendezvous.host)
        if interface and "NCCL_SOCKET_IFNAME" not in os.environ:
            chosen["NCCL_SOCKET_IFNAME"] = interface
    if interface:
        chosen["GLOO_SOCKET_IFNAME"] = interface
    return chosen | (extra or {})


def run_launch(
    plan: BenchPlan,
    nproc: int,
    folder: Path,
    *,
    rendezvous: Rendezvous | None = None,
    master: Master | None = None,
    environment: dict[str, str] | None = None,
    on_event: OnEvent | None = None,
    should_stop: ShouldStop | None = None,
) -> LaunchOutcome:
    """Run one launch to its end.

    Args:
        nproc: ranks started on this node.
        folder: new folder for plan, results, positions and log of this launch.
        rendezvous: how several nodes meet; None means this host alone.
        master: where the ranks meet; required with several nodes. None picks a free port, and another one if it is lost
            to another process meanwhile.
        environment: extra variables for the ranks.
        on_event: called for each result as it appears.
        should_stop: polled; a text stops the launch with that reason.

    Returns:
        The outcome, also for interrupted launches (status `interrupted`): the caller raises again if it wants to.

    Raises:
        LaunchError: port in use on every attempt.
        StoreError: the folder cannot be written.
    """
    fixed = master is not None
    local = rendezvous is None or rendezvous.node_rank == 0
    for attempt in range(PORT_ATTEMPTS):
        here = master or Master(address="127.0.0.1", port=network.free_port("127.0.0.1"))
        if fixed and local:
            network.require_port(here.port)
        try:
            launch = _Launch(
                plan, nproc, folder / f"try{attempt}" if attempt else folder, rendezvous, here, environment
            )
        except OSError as error:
            raise StoreError(
                f"the folder of this launch cannot be written: {folder}: {error.strerror or error}",
                "free space there, or set TMPDIR to a folder that can be written",
            ) from error
        outcome = launch.run(on_event, should_stop)
        if not outcome.events and outcome.failure is not None and _port_was_taken(outcome.log_tail):
            if fixed:
                network.require_port(here.port)
            continue
        return outcome
    raise LaunchError(
        f"no free port for the ranks after {PORT_ATTEMPTS} attempts", "give a port that other processes leave alone"
    )


def _port_was_taken(log: str) -> bool:
    return "EADDRINUSE" in log or "address already in use" in log.lower()


class _Launch:
    def __init__(
        self,
        plan: BenchPlan,
        nproc: int,
        folder: Path,
        rendezvous: Rendezvous | None,
        master: Master,
        environment: dict[str, str] | None,
    ) -> None:
        self.plan = plan
        self.nproc = nproc
        self.folder = folder
        self.id = uuid.uuid4().hex
        self.nnodes = rendezvous.nnodes if rendezvous else 1
        self.node_rank = rendezvous.node_rank if rendezvous else 0
        self.chosen = rank_environment(rendezvous, environment)
        folder.mkdir(parents=True, exist_ok=True)
        self.positions = folder / "progress"
        self.positions.mkdir(exist_ok=True)
        self.exits = folder / "exits.json"
        self.log = folder / "launch.log"
        plan_file = folder / "plan.json"
        plan_file.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
        self.command = [
            sys.executable, "-m", "moe_dispatch.bench.agent", str(self.exits),
            "--nnodes", str(self.nnodes), "--node-rank", str(self.node_rank), "--nproc-per-node", str(nproc),
            "--master-addr", master.address, "--master-port", str(master.port),
            "--rdzv-conf", f"timeout={int(plan.start_timeout_s)}",
            "--log-dir", str(folder / "torchrun"), "--max-restarts", "0",
            "--module", "moe_dispatch.bench.worker", str(plan_file), str(folder),
        ]  # fmt: skip

    def run(self, on_event: OnEvent | None, should_stop: ShouldStop | None) -> LaunchOutcome:
        """Start, watch, kill what is left, classify."""
        started = time.monotonic()
        oom_before = kernel_oom_kills()
        inherited = {
            k: v for k, v in os.environ.items() if k not in _INHERITED_TORCHRUN and not k.startswith("TORCHELASTIC_")
        }
        variables = inherited | self.chosen | {MARKER: self.id, "MOE_DISPATCH_LAUNCHER_PID": str(os.getpid())}
        reader = ResultsReader(self.folder / RESULTS_FILE)
        events: list[Event] = []

        def collect() -> None:
            for event in reader.new_events():
                events.append(event)
                if on_event:
                    on_event(event)

        with self.log.open("wb") as log:
            process = subprocess.Popen(
                self.command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            cause, note = Cause.INTERRUPTED, ""
            suspects: list[int] = []
            try:
                cause, note = self._watch(process, collect, should_stop)
                if cause is Cause.HANG:
                    pids = set(marked_pids(self.id))
                    suspects = watch.dump_stacks(
                        self.positions, [p for p in self._positions() if p.pid in pids], self.log
                    )
            except KeyboardInterrupt:
                cause = Cause.INTERRUPTED
            finally:
                survivors = kill_launch(self.id, process.pid)
                process.wait()
        collect()
        failure = None
        # Ranks that are done need no agent any more: waiting for its exit barrier would only cost time.
        if cause is not Cause.DONE and (cause is not Cause.EXIT or process.returncode != 0):
            failure = classify(
                cause,
                exits=watch.read_exits(self.exits),
                errors=read_errors(self.positions),
                positions=self._positions(),
                suspects=suspects,
                oom_kills=kernel_oom_kills() - oom_before,
                limit_s=self.plan.start_timeout_s if cause is Cause.NEVER_STARTED else self.plan.arm_timeout_s,
                note=note,
            )
        return LaunchOutcome(
            events=tuple(events),
            failure=failure,
            environment=self.chosen,
            log_tail=watch.tail(self.log, LOG_TAIL_BYTES),
            log=str(self.log),
            wall_s=time.monotonic() - started,
            survivors=tuple(survivors),
        )

    def _positions(self) -> list[Position]:
        return read_positions(self.positions)

    def _watch(
        self, process: subprocess.Popen[bytes], collect: Callable[[], None], should_stop: ShouldStop | None
    ) -> tuple[Cause, str]:
        """Wait for the end of the launch or for a reason to end it."""
        observer = watch.Observer(self.positions, self.plan.start_timeout_s, self.plan.arm_timeout_s, self.nproc)
        while process.poll() is None:
            collect()
            cause = observer.check()
            if cause is not None:
                return cause, ""
            note = should_stop() if should_stop else None
            if note:
                return Cause.STOPPED, note
            time.sleep(_POLL_S)
        return Cause.EXIT, ""


def require_started(outcome: LaunchOutcome) -> None:
    """Refuse an outcome that no arm can be blamed for.

    Raises:
        LaunchError: the launch failed outside every arm, with the failure's reason and the end of the log.
    """
    failure = outcome.failure
    if failure is None or failure.arm is not None or failure.status is RunStatus.INTERRUPTED:
        return
    explained = failure.rank is not None and not failure.consequence
    tail = "" if explained else "\n".join(["", *outcome.log_tail.splitlines()[-12:]])
    raise LaunchError(
        f"the launch failed and no dispatcher is to blame: {failure.reason}",
        f"{failure.fix or 'read the log'} ({outcome.log}){tail}",
    )
