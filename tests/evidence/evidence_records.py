"""Small records for the evidence tests."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from moe_dispatch.core.choice import Choice
from moe_dispatch.evidence.ids import new_run_id
from moe_dispatch.evidence.record import Contract, Correctness, Iteration, Performance, Provenance, RunRecord, RunStatus


def record(**changes: Any) -> RunRecord:
    """One valid `ok` record; give fields to change it."""
    fields: dict[str, Any] = {
        "run_id": new_run_id(),
        "session": "s1",
        "stage": "decide",
        "launch": 0,
        "choice": Choice(dispatcher="alltoall"),
        "status": RunStatus.OK,
        "contract": Contract(workload={"model": "tiny"}, measure={}, site={}, stack={}),
        "correctness": Correctness(passed=True),
        "performance": Performance(
            iterations=(Iteration(pass_index=0, latency_us={"total": 10.0}, slowest_rank=1),), host_of_rank=("a", "a")
        ),
        "provenance": Provenance(created=datetime.now(timezone.utc), tool_version="0", host="a"),
    }
    return RunRecord.model_validate(fields | changes)
