"""Records that say `ok` and prove nothing: another dispatcher ran, nothing shows that it ran, or they copy a run.

They lose their timing before anything is compared, with the reason. Samples under two names are a copy: no two training
runs print the same list of step times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.contract import partition
from moe_dispatch.decide.contract_table import TRAINING_LEVEL
from moe_dispatch.evidence.record import RunRecord, RunStatus

MIN_DISTINCT = 5
"""Distinct step times from which on an equal list is no coincidence (they are printed to 0.1 ms)."""


def trusted(records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[Finding]]:
    """The records that may be judged: without proof they are `unproven` or `fell_back`, and copies are dropped."""
    proven = [_proven(record) for record in records]
    findings = [
        Finding(
            id="requested-not-effective" if now.status is RunStatus.FELL_BACK else "activation-unproven",
            severity=Severity.ERROR,
            message=f"run {now.run_id}: {now.reason}",
            why="its time belongs to another dispatcher, or to nobody knows which",
            advice=(now.fix,),
            source="records",
        )
        for now, before in zip(proven, records, strict=True)
        if now.status is not before.status
    ]
    dropped: set[str] = set()
    distrusted: dict[str, RunRecord] = {}
    for same in _copies(proven):
        arms = sorted({record.choice.label for record in same})
        if len(arms) > 1:
            reason = f"the same step times are recorded for {' and '.join(arms)}: one run under several names"
            distrusted |= {one.run_id: _without_timing(one, RunStatus.UNPROVEN, reason, _COPY_FIX) for one in same}
            findings.append(_copy_finding("one-run-two-arms", Severity.ERROR, reason))
        elif len(same) > 1:
            dropped |= {record.run_id for record in same[1:]}
            message = f"{len(same)} records of {arms[0]} hold the same step times; they count as one launch"
            findings.append(_copy_finding("duplicate-run", Severity.WARNING, message))
    kept = [distrusted.get(record.run_id, record) for record in proven if record.run_id not in dropped]
    return kept, findings


_COPY_FIX = "give each run's own log once, under the dispatcher that ran"


def _copy_finding(kind: str, severity: Severity, message: str) -> Finding:
    why = "launches are what the interval is made of: a copy is not another one"
    return Finding(id=kind, severity=severity, message=message, why=why, advice=(_COPY_FIX,), source="records")


def _copies(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Records with the same step times that would be compared; under different contracts they are refused anyway."""
    found: defaultdict[tuple[int, tuple[float, ...]], list[RunRecord]] = defaultdict(list)
    for number, group in enumerate(partition([record for record in records if _samples(record)])):
        for record in group:
            found[number, _samples(record)].append(record)
    return [same for (_, samples), same in found.items() if len(set(samples)) >= MIN_DISTINCT]


def _samples(record: RunRecord) -> tuple[float, ...]:
    if record.performance is None or record.contract.measure.get("level") != TRAINING_LEVEL:
        return ()
    return tuple(iteration.latency_us["total"] for iteration in record.performance.iterations)


def _proven(record: RunRecord) -> RunRecord:
    training = record.training
    if record.status is not RunStatus.OK or training is None:
        return record
    wanted = record.choice.dispatcher
    if training.effective and training.effective != wanted:
        reason = f"recorded for {wanted}, but {training.effective} is in effect"
        return _without_timing(record, RunStatus.FELL_BACK, reason, "make request and configuration agree, run again")
    if not training.activation.proven:
        reason = f"nothing shows that {wanted} ran (proof: {training.activation.level})"
        fix = "give the log with the effective configuration, a profile, or a traced run"
        return _without_timing(record, RunStatus.UNPROVEN, reason, fix)
    return record


def _without_timing(record: RunRecord, status: RunStatus, reason: str, fix: str) -> RunRecord:
    training = record.training.model_copy(update={"metrics": None}) if record.training is not None else None
    changes = {"performance": None, "partial": record.performance, "training": training}
    return record.model_copy(update={"status": status, "reason": reason, "fix": fix, **changes})
