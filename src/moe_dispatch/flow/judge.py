"""Verdicts over stored records: reading stores and single records, picking the session, applying the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from moe_dispatch.core.errors import StoreError, UsageError
from moe_dispatch.core.finding import Finding
from moe_dispatch.core.registry import load_backends, load_backends_with_findings
from moe_dispatch.decide.verdict import decide
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.evidence.store import RECORD_FILE, Store, load_records
from moe_dispatch.flow.configure import config_blocks, configure
from moe_dispatch.flow.plan_runs import records_of_plan
from moe_dispatch.flow.summary import report_data
from moe_dispatch.megatron.plan.model import is_plan_folder
from moe_dispatch.report.data import ReportData


def read_records(paths: Sequence[str | Path]) -> tuple[list[RunRecord], list[Finding]]:
    """Records of stores, run folders, plans and files of records, each once, by run id; and what could not be read.

    Raises:
        StoreError: a path does not exist, or nothing readable was found.
    """
    records: dict[str, RunRecord] = {}
    findings: list[Finding] = []
    for path in map(Path, paths):
        if is_plan_folder(path):
            planned, missing = records_of_plan(path)
            records.update({record.run_id: record for record in planned})
            findings += missing
        elif path.is_file() or (path / RECORD_FILE).is_file():
            for loaded in load_records(path if path.is_file() else path / RECORD_FILE):
                if isinstance(loaded, Finding):
                    findings.append(loaded)
                else:
                    records[loaded.run_id] = loaded
        elif path.is_dir():
            contents = Store(path).scan()
            records.update({record.run_id: record for record in contents.records})
            findings += contents.findings
        else:
            raise StoreError(f"{path} does not exist", "give a store directory, a run folder or a record.json")
    if not records:
        detail = f": {findings[0].message}" if findings else ""
        raise StoreError(f"no records in {', '.join(map(str, paths))}{detail}", "give the store of a finished run")
    return [records[run_id] for run_id in sorted(records)], findings


def of_session(records: Sequence[RunRecord], session: str | None) -> list[RunRecord]:
    """Records of one session; of the newest when none is named.

    Raises:
        UsageError: no such session.
    """
    sessions = list(dict.fromkeys(record.session for record in records))
    wanted = sessions[-1] if session is None else session
    if wanted not in sessions:
        raise UsageError(f"no session {wanted!r} among these records", f"there are: {', '.join(sessions)}")
    return [record for record in records if record.session == wanted]


def of_arms(records: Sequence[RunRecord], arms: Sequence[str]) -> list[RunRecord]:
    """Records of these arms, each a label or a dispatcher's name; all where none is named.

    Raises:
        UsageError: an arm that no record tried.
    """
    names = {name for record in records for name in (record.choice.label, record.choice.dispatcher)}
    for arm in arms:
        if arm not in names:
            raise UsageError(f"no record of arm {arm!r}", f"there are: {', '.join(sorted(names))}")
    return [record for record in records if not arms or {record.choice.label, record.choice.dispatcher} & set(arms)]


def simplicity() -> Mapping[str, int]:
    """Rank of every registered dispatcher, 0 is simplest."""
    return {name: spec.simplicity for name, spec in load_backends().items()}


def report_of_records(
    paths: Sequence[str | Path], session: str | None, threshold: float, attest: tuple[str, ...], core_version: str
) -> ReportData:
    """Verdict and report of one session, from records alone.

    Raises:
        StoreError: nothing readable.
        UsageError: no such session, an attested field that does not exist, or a malformed core version.
    """
    everything, findings = read_records(paths)
    records = of_session(everything, session)
    specs, broken = load_backends_with_findings()
    verdict = decide(records, simplicity=simplicity(), threshold=threshold, attest=attest)
    emitted = configure(verdict, specs, None, None, core_version)
    model = verdict.measured_on.get("model") or "records"
    return report_data(
        title=f"{model}, session {records[-1].session}",
        records=records,
        verdict=verdict,
        config=config_blocks(emitted) if emitted else (),
        findings=(*findings, *broken),
    )
