"""Several nodes in lock step: node 0 decides and publishes every launch, the others follow; they share no file system.

Node 0 hosts a `torch.distributed.TCPStore` at the rendezvous endpoint. For each launch it publishes the plan and a port
for the ranks; every node starts torchrun with a static rendezvous there and reports how its own ranks ended. Results
travel between the ranks themselves, to rank 0 on node 0.
"""

from __future__ import annotations

import contextlib
import platform
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import moe_dispatch
from moe_dispatch.bench import network
from moe_dispatch.bench.classify import Failure
from moe_dispatch.bench.launch import LaunchOutcome, Master, OnEvent, run_launch
from moe_dispatch.bench.plan import BenchPlan, Rendezvous
from moe_dispatch.core.errors import LaunchError, MoeDispatchError
from moe_dispatch.evidence.record import Model, RunStatus

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

REPORT_GRACE_S = 45.0
_POLL_S = 0.1
_CALL_TIMEOUT = timedelta(seconds=20)


class NodeInfo(Model):
    """What a node says on arrival."""

    node_rank: int
    host: str
    nproc: int
    python: str
    torch: str
    moe_dispatch: str


class Order(Model):
    """One published launch."""

    plan: BenchPlan
    master: Master
    environment: dict[str, str]


class NodeOutcome(Model):
    """How the ranks of one node ended."""

    failure: Failure | None
    log_tail: str


class Leader:
    """Node 0. Construction waits until all nodes have arrived.

    Use as a context manager: leaving it by an exception tells the followers to stop with that message.

    Raises:
        LaunchError: the endpoint's port is in use, a node never arrived, or nodes differ in versions or ranks.
    """

    def __init__(self, rendezvous: Rendezvous, nproc: int, on_wait: Callable[[str], None] | None = None) -> None:
        network.require_port(rendezvous.port)
        self.rendezvous = rendezvous
        self._store = _connect(rendezvous, host=True)
        self._launches = 0
        try:
            self.nodes = self._gather_nodes(nproc, on_wait)
        except LaunchError as error:
            self.abort(str(error))
            raise

    def __enter__(self) -> Leader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(str(error) or type(error).__name__)

    def run(
        self, plan: BenchPlan, nproc: int, folder: Path, *, environment: dict[str, str], on_event: OnEvent
    ) -> LaunchOutcome:
        """Run one launch on all nodes; signature of `run.Runner`.

        Raises:
            LaunchError: port in use, or a node that no longer answers.
        """
        index, store = self._launches, self._store
        self._launches += 1
        port = self.rendezvous.master_port or network.free_port()
        network.require_port(port)
        master = Master(address=self.rendezvous.host, port=port)
        store.set(f"launch/{index}", Order(plan=plan, master=master, environment=environment).model_dump_json())

        def other_failed() -> str | None:
            return "a rank of another node failed" if store.check([f"failed/{index}"]) else None

        mine = run_launch(
            plan,
            nproc,
            folder,
            rendezvous=self.rendezvous,
            master=master,
            environment=environment,
            on_event=on_event,
            should_stop=other_failed,
        )
        if mine.failure is not None:
            store.set(f"stop/{index}", mine.failure.reason)
        others = self._outcomes(index, mine)
        return mine.model_copy(
            update={
                "failure": root_failure([mine.failure, *(outcome.failure for outcome in others)]),
                "log_tail": "\n".join([mine.log_tail, *(o.log_tail for o in others if o.failure is not None)]),
            }
        )

    def finish(self, text: str, wait_s: float = 30.0) -> None:
        """Publish the final text and wait until the followers have read it."""
        self._store.set("final", text)
        self._wait_for_goodbyes(wait_s)

    def abort(self, reason: str) -> None:
        """Tell the followers to stop; never raises."""
        with contextlib.suppress(Exception):
            self._store.set("abort", reason)
            self._wait_for_goodbyes(5.0)

    def _wait_for_goodbyes(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        keys = [f"bye/{node}" for node in range(1, self.rendezvous.nnodes) if self._store.check([f"node/{node}"])]
        while keys and not self._store.check(keys) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _gather_nodes(self, nproc: int, on_wait: Callable[[str], None] | None) -> tuple[NodeInfo, ...]:
        rendezvous, store = self.rendezvous, self._store
        store.set("node/0", _about_this_node(0, nproc).model_dump_json())
        deadline = time.monotonic() + rendezvous.arrive_timeout_s
        told: list[int] = []
        while True:
            missing = [node for node in range(rendezvous.nnodes) if not store.check([f"node/{node}"])]
            if not missing:
                break
            names = ", ".join(str(node) for node in missing)
            if missing != told and on_wait is not None:
                on_wait(f"waiting for node {names} at {rendezvous.endpoint}")
            told = missing
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"node {names} of {rendezvous.nnodes} did not arrive at {rendezvous.endpoint} "
                    f"within {rendezvous.arrive_timeout_s:.0f} s",
                    "run the same command on every node with its own node rank, and check that it reaches the endpoint",
                )
            time.sleep(_POLL_S)
        nodes = tuple(NodeInfo.model_validate_json(store.get(f"node/{node}")) for node in range(rendezvous.nnodes))
        for field in ("nproc", "python", "torch", "moe_dispatch"):
            values = {node.node_rank: getattr(node, field) for node in nodes}
            if len(set(values.values())) > 1:
                raise LaunchError(
                    f"nodes differ in {field}: {values}", "use the same container and options on every node"
                )
        return nodes

    def _outcomes(self, index: int, mine: LaunchOutcome) -> list[NodeOutcome]:
        keys = {node: f"outcome/{index}/{node}" for node in range(1, self.rendezvous.nnodes)}
        deadline = time.monotonic() + REPORT_GRACE_S
        while not self._store.check(list(keys.values())):
            if time.monotonic() > deadline:
                silent = [node for node, key in keys.items() if not self._store.check([key])]
                seen = f" ({mine.failure.reason})" if mine.failure else ""
                raise LaunchError(
                    f"node {', '.join(map(str, silent))} no longer answers{seen}",
                    "look at that node's own output; finished records are kept, start all nodes again to resume",
                )
            time.sleep(_POLL_S)
        return [NodeOutcome.model_validate_json(self._store.get(key)) for key in keys.values()]


def follow(
    rendezvous: Rendezvous, nproc: int, folder: Path, on_launch: Callable[[BenchPlan], None] | None = None
) -> str:
    """Follow node 0 until it is done; returns its final text.

    Args:
        folder: where this node keeps logs of its ranks.
        on_launch: told about every launch.

    Raises:
        LaunchError: node 0 was never there, went away, or stopped with an error.
    """
    store = _connect(rendezvous, host=False)
    me = rendezvous.node_rank
    store.set(f"node/{me}", _about_this_node(me, nproc).model_dump_json())
    index = 0
    while True:
        try:
            waiting = not store.check([f"launch/{index}"])
            if waiting and store.check(["abort"]):
                reason = store.get("abort").decode()
                store.set(f"bye/{me}", "1")
                raise LaunchError(f"node 0 stopped: {reason}")
            if waiting and store.check(["final"]):
                text = str(store.get("final").decode())
                store.set(f"bye/{me}", "1")
                return text
            order = None if waiting else Order.model_validate_json(store.get(f"launch/{index}"))
        except RuntimeError as error:
            raise _lost_leader(rendezvous) from error
        if order is None:
            time.sleep(_POLL_S)
            continue
        if on_launch is not None:
            on_launch(order.plan)
        _follow_launch(store, rendezvous, order, index, nproc, folder / f"launch-{index:03d}")
        index += 1


def root_failure(failures: list[Failure | None]) -> Failure | None:
    """The failure that explains the others: the first that is no mere consequence, else the first."""
    real = [failure for failure in failures if failure is not None]
    return next((failure for failure in real if not failure.consequence), real[0] if real else None)


def _follow_launch(store: TCPStore, rendezvous: Rendezvous, order: Order, index: int, nproc: int, folder: Path) -> None:
    def told_to_stop() -> str | None:
        try:
            return "node 0 stopped this launch" if store.check([f"stop/{index}"]) else None
        except RuntimeError:
            return "node 0 is gone"

    try:
        outcome = run_launch(
            order.plan,
            nproc,
            folder,
            rendezvous=rendezvous,
            master=order.master,
            environment=order.environment,
            should_stop=told_to_stop,
        )
    except MoeDispatchError as error:
        failure = Failure(
            status=RunStatus.CRASHED, reason=f"node {rendezvous.node_rank}: {error.message}", fix=error.fix
        )
        with contextlib.suppress(RuntimeError):
            store.set(f"failed/{index}", failure.reason)
            report = NodeOutcome(failure=failure, log_tail="")
            store.set(f"outcome/{index}/{rendezvous.node_rank}", report.model_dump_json())
        raise
    report = NodeOutcome(failure=outcome.failure, log_tail=outcome.log_tail)
    try:
        if outcome.failure is not None:
            store.set(f"failed/{index}", outcome.failure.reason)
        store.set(f"outcome/{index}/{rendezvous.node_rank}", report.model_dump_json())
    except RuntimeError as error:
        raise _lost_leader(rendezvous) from error
    if outcome.failure is not None and outcome.failure.status is RunStatus.INTERRUPTED:
        raise KeyboardInterrupt


def _lost_leader(rendezvous: Rendezvous) -> LaunchError:
    return LaunchError(
        f"node 0 at {rendezvous.endpoint} is gone", "look at node 0's output; start all nodes again to resume"
    )


def _connect(rendezvous: Rendezvous, *, host: bool) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    limit = _CALL_TIMEOUT if host else timedelta(seconds=rendezvous.arrive_timeout_s)
    try:
        store = TCPStore(rendezvous.host, rendezvous.port, is_master=host, timeout=limit, wait_for_workers=False)
    except RuntimeError as error:
        raise LaunchError(
            f"no node 0 at {rendezvous.endpoint} within {rendezvous.arrive_timeout_s:.0f} s",
            "start node 0 (--node-rank 0) first or at the same time, and check the address, the port and the firewall",
        ) from error
    store.set_timeout(_CALL_TIMEOUT)
    return store


def _about_this_node(node_rank: int, nproc: int) -> NodeInfo:
    import torch

    return NodeInfo(
        node_rank=node_rank,
        host=socket.gethostname(),
        nproc=nproc,
        python=platform.python_version(),
        torch=torch.__version__,
        moe_dispatch=moe_dispatch.__version__,
    )
