"""Backends that are not available here, as records: shown with their reason in every table, never ranked."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

import moe_dispatch
from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.core.choice import Choice
from moe_dispatch.evidence.ids import new_run_id
from moe_dispatch.evidence.record import Provenance, RunRecord, RunStatus
from moe_dispatch.evidence.store import Store
from moe_dispatch.site.gate_result import GateResult

GATE = "gate"


def record_unavailable(
    store: Store, plan: BenchPlan, gates: Mapping[str, GateResult], earlier: Sequence[RunRecord]
) -> list[RunRecord]:
    """Write one record for each backend that did not pass its gate; a reason that is already recorded is left alone.

    Args:
        plan: gives the contract under which the backend would have been measured.
        earlier: records of the same session.
    """
    known = {(record.choice.dispatcher, record.reason) for record in earlier if record.stage == GATE}
    written = []
    for name, gate in gates.items():
        reason = gate.reason or "its gate was not passed"
        if gate.available or (name, reason) in known:
            continue
        record = RunRecord(
            run_id=new_run_id(),
            session=plan.session,
            stage=GATE,
            launch=0,
            choice=Choice(dispatcher=name),
            status=RunStatus.UNAVAILABLE,
            contract=plan.contract(plan.routings[0], None, {}, {}),
            reason=reason,
            fix=gate.fix,
            provenance=Provenance(
                created=datetime.now(timezone.utc),
                tool_version=moe_dispatch.__version__,
                host=socket.gethostname(),
                provider=gate.provider or "",
                provider_version=gate.version or "",
            ),
        )
        store.write(record, {"gate.log": gate.detail.encode()} if gate.detail else None)
        written.append(record)
    return written
