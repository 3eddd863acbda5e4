"""Continuing an interrupted session: which one, and whether it is still the same question on the same stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.core.errors import StoreError, UsageError
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.evidence.store import Store

_PER_STAGE = ("tokens_per_rank", "routing")
"""Workload fields that may differ between records of one session."""


def records_to_resume(store: Store) -> list[RunRecord]:
    """Records of the store's newest session.

    Raises:
        StoreError: the store holds no session.
    """
    sessions = store.sessions()
    if not sessions:
        raise StoreError(f"store {store.path} holds no session to resume", "run the same command without --resume")
    return [record for record in store.read_all() if record.session == sessions[-1]]


def require_same_stack(records: Sequence[RunRecord], plan: BenchPlan) -> None:
    """Refuse to mix launches of two stacks, sites or workloads in one session.

    Args:
        plan: what would be measured now.

    Raises:
        UsageError: names every field that changed.
    """
    now = plan.contract(plan.routings[0], None, {}, {})
    for kind, current in (("workload", now.workload), ("stack", now.stack), ("site", now.site)):
        for record in records:
            changed = _changed(getattr(record.contract, kind), current)
            if changed:
                fields = "; ".join(f"{kind}.{name} was {old!r}, is {new!r}" for name, (old, new) in changed.items())
                raise UsageError(
                    f"session {record.session} cannot be resumed: {fields}",
                    f"restore that {kind}, or start a new session without --resume",
                )


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (then[name], value)
        for name, value in now.items()
        if name in then and name not in _PER_STAGE and then[name] != value
    }
