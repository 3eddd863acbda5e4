"""Records of one arm gathered for comparison: its launches in order, memory, and attempts that gave no timing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.contract_table import contract_fields
from moe_dispatch.decide.stats import Samples
from moe_dispatch.evidence.record import Iteration, Model, RunRecord, RunStatus

MEMORY_KINDS = ("device_used_delta_bytes", "reserved_peak_bytes", "allocated_peak_bytes")
"""Preferred first: NVSHMEM and fabric buffers live outside the allocator, and head-room is lost to them as well."""

_STRAGGLER_SHARE = 0.6
_MISSING = {RunStatus.UNAVAILABLE: "missing", RunStatus.UNSUPPORTED: "missing"}


class LaunchKey(NamedTuple):
    """One set of processes; records that share it ran interleaved."""

    session: str
    stage: str
    launch: int
    processes: str


class ArmSummary(Model):
    """One arm that was compared.

    Fields:
        launch_medians_us: median latency of each launch, in order of the launches.
        median_us: geometric mean of those, the time that is ranked.
        memory_bytes: largest over launches, or None when it is not known for all arms.
        labels: of this arm, arm-specific ones included.
        hosts: that ran it, in any launch.
        providers: what was behind the name (package and API); more than one means that records of two were pooled.
        through_control: it ran in another environment; `median_us` is then its ratio to the control there times the
            control's time here, so that it can be ranked.
    """

    choice: Choice
    launches: int
    iterations: int
    launch_medians_us: tuple[float, ...]
    median_us: float
    memory_bytes: int | None = None
    memory_kind: str = ""
    labels: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    through_control: bool = False

    @property
    def label(self) -> str:
        """Label of the choice."""
        return self.choice.label


class ArmStatus(Model):
    """Attempts of one choice that carry no timing: shown, never ranked.

    Fields:
        settings: contract fields of the latest attempt, where they decide what may be said (out of memory).
    """

    choice: Choice
    status: RunStatus
    stage: str
    attempts: int
    reason: str
    fix: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)


class Arm:
    """All comparable `ok` records of one choice.

    Args:
        phase: key of `Iteration.latency_us` that is compared.

    Raises:
        UsageError: a record lacks the phase.
    """

    def __init__(self, records: Sequence[RunRecord], phase: str) -> None:
        self.choice = records[0].choice
        self.label = self.choice.label
        self.records: dict[LaunchKey, RunRecord] = {}
        for record in sorted(records, key=lambda one: one.run_id):
            self.records[_launch(record)] = record
        self.phase = phase

    def samples(self, keys: Iterable[LaunchKey] | None = None) -> list[Samples]:
        """Latencies in microseconds per launch, in the order of the keys (default: all, sorted)."""
        chosen = sorted(self.records) if keys is None else keys
        return [np.array(self._latencies(self.records[key]), dtype=np.float64) for key in chosen]

    def visits(self) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        """`pass_index` of every iteration, aligned with `samples()`."""
        return [
            np.array([iteration.pass_index for iteration in _iterations(self.records[key])], dtype=np.int64)
            for key in sorted(self.records)
        ]

    @property
    def interleaved(self) -> bool:
        """Whether the launches visited several arms in turn, as the contract's `measure.visits` tells."""
        return all(record.contract.measure.get("visits") is not None for record in self.records.values())

    def memory(self, kind: str) -> int | None:
        """Largest value over launches, or None when a launch does not know it."""
        values = [getattr(record.memory, kind, None) for record in self.records.values()]
        known = [int(value) for value in values if value is not None]
        return max(known) if len(known) == len(values) else None

    def summary(self, memory_kind: str) -> ArmSummary:
        """Numbers for tables."""
        samples = self.samples()
        medians = [float(np.median(launch)) for launch in samples]
        return ArmSummary(
            choice=self.choice,
            launches=len(samples),
            iterations=sum(launch.size for launch in samples),
            launch_medians_us=tuple(medians),
            median_us=float(np.exp(np.mean(np.log(medians)))),
            memory_bytes=self.memory(memory_kind) if memory_kind else None,
            memory_kind=memory_kind,
            labels=tuple(sorted({label for record in self.records.values() for label in record.labels})),
            hosts=tuple(sorted({host for record in self.records.values() for host in _hosts(record)})),
            providers=tuple(sorted({record.provenance.provider for record in self.records.values()} - {""})),
        )

    def _latencies(self, record: RunRecord) -> list[float]:
        try:
            return [iteration.latency_us[self.phase] for iteration in _iterations(record)]
        except KeyError:
            allowed = ", ".join(sorted(_iterations(record)[0].latency_us))
            raise UsageError(
                f"phase {self.phase!r} was not measured in run {record.run_id}", f"allowed: {allowed}"
            ) from None


def gather(records: Iterable[RunRecord], phase: str) -> dict[str, Arm]:
    """Arms by label."""
    by_label: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        by_label[record.choice.label].append(record)
    return {label: Arm(members, phase) for label, members in sorted(by_label.items())}


def common_memory_kind(arms: Iterable[Arm]) -> str:
    """The preferred kind that every arm knows, or an empty string."""
    members = list(arms)
    return next((kind for kind in MEMORY_KINDS if all(arm.memory(kind) is not None for arm in members)), "")


def without_timing(records: Iterable[RunRecord]) -> tuple[ArmStatus, ...]:
    """Attempts that did not end `ok`, one entry for each (choice, status, stage), with the latest reason."""
    attempts: dict[tuple[str, str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.status is not RunStatus.OK:
            attempts[record.choice.label, record.status.value, record.stage].append(record)
    result = []
    for _, members in sorted(attempts.items()):
        latest = max(members, key=lambda one: one.run_id)
        result.append(
            ArmStatus(
                choice=latest.choice,
                status=latest.status,
                stage=latest.stage,
                attempts=len(members),
                reason=latest.reason,
                fix=latest.fix,
                settings=contract_fields(latest) if latest.status is RunStatus.OOM else {},
            )
        )
    return tuple(result)


def status_findings(statuses: Iterable[ArmStatus]) -> list[Finding]:
    """One finding for each attempt without timing: it is not data about speed."""
    return [
        Finding(
            id=f"arm-{_MISSING.get(one.status, one.status.value.replace('_', '-'))}-is-not-slow",
            severity=Severity.INFO,
            message=f"{one.choice.label}: {one.status.value} in stage {one.stage} ({one.attempts}x): {one.reason}",
            why="an attempt without a valid timing says nothing about speed",
            advice=(one.fix,) if one.fix else (),
            source="records",
        )
        for one in statuses
    ]


def straggler_finding(arms: Iterable[Arm]) -> Finding | None:
    """Name a rank that sets the time of most iterations, whatever the arm; None when there is none."""
    slowest: Counter[tuple[int, str]] = Counter()
    ranks = 0
    for arm in arms:
        for record in arm.records.values():
            if record.performance is None:
                continue
            hosts = record.performance.host_of_rank
            ranks = max(ranks, len(hosts))
            for iteration in record.performance.iterations:
                rank = iteration.slowest_rank
                if rank is None:
                    continue
                slowest[rank, hosts[rank] if rank < len(hosts) else "unknown host"] += 1
    if ranks < 3 or not slowest:
        return None
    (rank, host), count = slowest.most_common(1)[0]
    share = count / slowest.total()
    if share < _STRAGGLER_SHARE:
        return None
    return Finding(
        id="straggler",
        severity=Severity.WARNING,
        message=f"rank {rank} on {host} was the slowest of {ranks} ranks in {share:.0%} of all iterations",
        why="the time of an iteration is that of its slowest rank, so every arm was measured on this one",
        advice=(f"check {host} (clocks, other jobs, network link), then measure again",),
        source="records",
    )


def _launch(record: RunRecord) -> LaunchKey:
    """Its set of processes; a record that shares its processes with no other arm is one of its own."""
    alone = "" if record.contract.measure.get("visits") is not None else record.run_id
    return LaunchKey(record.session, record.stage, record.launch, record.processes or alone)


def _iterations(record: RunRecord) -> Sequence[Iteration]:
    assert record.performance is not None
    return record.performance.iterations


def _hosts(record: RunRecord) -> Sequence[str]:
    """Hosts of the ranks; that of the launcher where a record does not name them, which says nothing of a log."""
    assert record.performance is not None
    known = record.performance.host_of_rank or record.contract.site.get("hosts")
    return tuple(known) if known else ("unknown hosts",) if record.training is not None else (record.provenance.host,)
