"""Reads the SQLite export of an Nsight Systems profile: which dispatcher's kernels ran, and how much they were exposed.

Tables: CUPTI_ACTIVITY_KIND_KERNEL and StringIds (Nsight Systems user guide, SQLite schema). Exposed is the time in
which a kernel of the dispatcher runs on a device and no computing kernel does; it bounds what a better one can save.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.training import ExposedCommunication
from moe_dispatch.megatron.ingest.activation import load_activation

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_MAX_NAMES = 20
_EXPORT = "export it with `nsys export --type sqlite FILE.nsys-rep`"


@dataclass(frozen=True)
class Profile:
    """What a profile shows.

    Fields:
        backends: backend -> example kernel names, for every backend whose kernels ran.
        exposed: of each backend, on the device where its share is largest.
    """

    backends: dict[str, tuple[str, ...]]
    exposed: dict[str, ExposedCommunication]


def read_profile(path: Path) -> Profile:
    """Read one export; the kernels are streamed in order of time.

    Raises:
        UsageError: no file, no SQLite file, or one without kernels.
    """
    if not path.is_file():
        raise UsageError(f"profile {path} does not exist", f"give the SQLite export of a profile; {_EXPORT}")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
            roles, names = _roles(database)
            sweeps = _sweep(database, roles)
    except sqlite3.Error as error:
        raise UsageError(f"{path} is not a usable SQLite export of a profile: {error}", _EXPORT) from None
    if not sweeps:
        raise UsageError(f"profile {path} holds no kernels", "profile with --trace=cuda, then export again")
    ran = {name: counts for name in load_activation().backends if (counts := _counts(sweeps.values(), names, name))}
    return Profile(
        backends={name: tuple(counts) for name, counts in ran.items()},
        exposed={
            name: max(
                (_exposed(device, sweep, name, counts) for device, sweep in sweeps.items()), key=lambda e: e.share
            )
            for name, counts in ran.items()
        },
    )


class _Union:
    """Union of intervals that arrive in order of their starts, nanoseconds."""

    def __init__(self) -> None:
        self.merged: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        if self.merged and start <= self.merged[-1][1]:
            first, last = self.merged[-1]
            self.merged[-1] = (first, max(last, end))
        else:
            self.merged.append((start, end))

    @property
    def total(self) -> int:
        return sum(end - start for start, end in self.merged)


class _Sweep:
    """One device: unions of compute and of each backend, and the number of kernels by name."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last = 0
        self.compute = _Union()
        self.communication: dict[str, _Union] = defaultdict(_Union)
        self.names: Counter[int] = Counter()

    def add(self, start: int, end: int, name: int, roles: frozenset[str]) -> None:
        self.first = start if self.first is None else self.first
        self.last = max(self.last, end)
        self.names[name] += 1
        for role in roles:
            (self.compute if role == "compute" else self.communication[role]).add(start, end)


def _roles(database: sqlite3.Connection) -> tuple[dict[int, frozenset[str]], dict[int, str]]:
    """Kernel name id -> `compute` or the backends that use the kernel; other communication has no role."""
    table = load_activation()
    used = f"SELECT DISTINCT demangledName FROM {_KERNELS}"
    roles: dict[int, frozenset[str]] = {}
    names: dict[int, str] = {}
    for identity, text in database.execute(f"SELECT id, value FROM StringIds WHERE id IN ({used})"):
        backends = {
            name for name, one in table.backends.items() if any(pattern.search(text) for pattern in one.kernels)
        }
        other = table.communication_kernels.search(text) is not None
        roles[identity] = frozenset(backends or (() if other else {"compute"}))
        names[identity] = text
    return roles, names


def _sweep(database: sqlite3.Connection, roles: dict[int, frozenset[str]]) -> dict[int, _Sweep]:
    sweeps: dict[int, _Sweep] = defaultdict(_Sweep)
    for start, end, device, name in _kernels(database):
        sweeps[device].add(start, end, name, roles.get(name, frozenset({"compute"})))
    return dict(sweeps)


def _kernels(database: sqlite3.Connection) -> Iterator[tuple[int, int, int, int]]:
    query = f'SELECT start, "end", deviceId, demangledName FROM {_KERNELS} ORDER BY start'
    for start, end, device, name in database.execute(query):
        if isinstance(start, int) and isinstance(end, int) and end > start:
            yield start, end, int(device or 0), name


def _counts(sweeps: Iterable[_Sweep], names: dict[int, str], backend: str) -> dict[str, int]:
    patterns = load_activation().backends[backend].kernels
    counts: Counter[str] = Counter()
    for sweep in sweeps:
        for identity, count in sweep.names.items():
            text = names.get(identity, "")
            if any(pattern.search(text) for pattern in patterns):
                counts[text.partition("(")[0][:120]] += count
    return dict(counts.most_common(_MAX_NAMES))


def _exposed(device: int, sweep: _Sweep, backend: str, counts: dict[str, int]) -> ExposedCommunication:
    communication = sweep.communication.get(backend, _Union())
    hidden = _overlap(communication.merged, sweep.compute.merged)
    span = sweep.last - (sweep.first or 0)
    exposed = communication.total - hidden
    return ExposedCommunication(
        device=device,
        span_ms=span / 1e6,
        communication_ms=communication.total / 1e6,
        exposed_ms=exposed / 1e6,
        share=exposed / span if span else 0.0,
        kernels=counts,
        ambiguous=load_activation().backends[backend].ambiguous,
    )


def _overlap(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> int:
    """Length of the intersection of two unions."""
    total = at = 0
    for start, end in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        ahead = at
        while ahead < len(right) and right[ahead][0] < end:
            total += min(end, right[ahead][1]) - max(start, right[ahead][0])
            ahead += 1
    return total
