"""Synthetic records with known truth for the decide and report tests."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from moe_dispatch.core.choice import Choice
from moe_dispatch.evidence.ids import new_run_id
from moe_dispatch.evidence.record import (
    Contract,
    Correctness,
    Iteration,
    Memory,
    Performance,
    Provenance,
    RunRecord,
    RunStatus,
    Traffic,
)

SIMPLICITY = {"alltoall": 0, "allgather": 1, "hierarchical": 2, "hybridep": 4, "deepep": 5}
VISITS = 4
WORKLOAD = {
    "model": "tiny-moe",
    "tokens_per_rank": 256,
    "dtype": "bfloat16",
    "routing": "force_balanced",
    "tp": 1,
    "ep": 4,
}
MEASURE = {"level": "layer", "visits": VISITS, "iterations": 3, "seed": 0}
SITE = {"device": "cpu", "device_name": "Test CPU", "transport": "gloo", "nodes": 1, "ranks": 4}
STACK = {"python": "3.11", "torch": "2.13.0"}


def choice(text: str) -> Choice:
    """`name` or `name(knob=1)`."""
    found = re.fullmatch(r"(\w+)\((\w+=\d+(?:, \w+=\d+)*)\)", text)
    if found is None:
        return Choice(dispatcher=text)
    pairs = [part.split("=") for part in found[2].split(", ")]
    return Choice(dispatcher=found[1], knobs={key: int(value) for key, value in pairs})


def latencies(
    mean_us: float, launches: int = 5, noise: float = 0.003, iterations: int = 12, seed: int = 0
) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """Log-normal around a median; launches differ among each other by common factors, as on a real machine."""
    common = np.random.default_rng(99).normal(0, 0.05, launches)
    rng = np.random.default_rng(seed)
    return [mean_us * np.exp(common[i] + rng.normal(0, noise, iterations)) for i in range(launches)]


def record(
    arm: str,
    samples: Sequence[float] = (),
    *,
    launch: int = 0,
    stage: str = "decide",
    session: str = "s1",
    status: RunStatus = RunStatus.OK,
    labels: Sequence[str] = ("benchmark_only",),
    reason: str = "",
    fix: str = "",
    memory: int | None = 1000,
    **fields: Any,
) -> RunRecord:
    """One record; keyword fields change the contract (`tp=4`, `torch=None` for unknown, `visits=...` for none)."""
    groups = {"workload": WORKLOAD, "measure": MEASURE, "site": SITE, "stack": STACK}
    contract = {name: dict(group) for name, group in groups.items()}
    for key, value in fields.items():
        home = next((name for name, group in groups.items() if key in group), "workload")
        contract[home][key] = value
        if value is ...:
            del contract[home][key]
    ok = status is RunStatus.OK
    per_visit = max(1, len(samples) // VISITS)
    iterations = tuple(
        Iteration(pass_index=index // per_visit, latency_us={"total": float(value)}, slowest_rank=index % 4)
        for index, value in enumerate(samples)
    )
    return RunRecord(
        run_id=new_run_id(),
        session=session,
        stage=stage,
        launch=launch,
        choice=choice(arm),
        status=status,
        contract=Contract(**contract),
        labels=tuple(labels),
        reason=reason or ("" if ok else f"{status.value} for a reason"),
        fix=fix,
        correctness=Correctness(passed=True) if ok else None,
        memory=Memory(device_used_delta_bytes=memory) if ok and memory is not None else None,
        traffic=Traffic(
            row_bytes=4096,
            rows_copies=8192,
            rows_copies_off_rank=6144,
            rows_copies_off_domain=0,
            rows_rank=3700,
            rows_rank_off_rank=2780,
            rows_rank_off_domain=0,
            rows_domain=1024,
            rows_domain_off_domain=0,
        )
        if ok
        else None,
        performance=Performance(iterations=iterations, host_of_rank=("a", "a", "a", "a")) if ok else None,
        provenance=Provenance(created=datetime.now(timezone.utc), tool_version="0", host="a"),
    )


def arm_records(arm: str, mean_us: float, launches: int = 5, noise: float = 0.003, **options: Any) -> list[RunRecord]:
    """All launches of one arm, seeded by its name."""
    seed = zlib.crc32(f"{arm}{options.get('routing', '')}".encode())
    data = latencies(mean_us, launches, noise, seed=seed)
    return [record(arm, samples, launch=launch, **options) for launch, samples in enumerate(data)]
