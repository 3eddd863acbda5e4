"""One complete report over synthetic records."""

from __future__ import annotations

from typing import Any

from decide_records import SIMPLICITY, arm_records, record

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.verdict import Verdict, decide
from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.report.data import CandidateRow, ConfigBlock, GateRow, ReportData, Row, traffic_rows

LABELS = ("benchmark_only", "oversubscribed", "scaled_tokens")


def records(hostile: str = "") -> list[RunRecord]:
    return [
        *arm_records("alltoall", 512_000, noise=0.02, labels=LABELS, memory=700_000_000),
        *arm_records(f"hierarchical{hostile}", 430_000, noise=0.02, labels=LABELS, memory=1_400_000_000),
        *arm_records("alltoall", 512_000, noise=0.02, labels=LABELS, routing="zipf:1.0"),
        *arm_records(f"hierarchical{hostile}", 450_000, noise=0.02, labels=LABELS, routing="zipf:1.0"),
        record(
            "deepep",
            stage="gate",
            status=RunStatus.UNAVAILABLE,
            reason=f"No module named 'deep_ep'{hostile}",
            fix=f"install it{hostile}",
        ),
    ]


def judged(rows: list[RunRecord]) -> Verdict:
    return decide(rows, simplicity=SIMPLICITY)


def report(hostile: str = "", **changes: Any) -> ReportData:
    rows = records(hostile)
    fields: dict[str, Any] = {
        "title": f"tiny-moe, EP 4{hostile}",
        "session": "20260102T030405-9f86d081",
        "created": "2026-01-02T03:04:05Z",
        "tool_version": "0.1.0",
        "verdict": judged(rows),
        "records": tuple(rows),
        "workload": (Row(name="model", value=f"tiny-moe{hostile}"),),
        "site": (Row(name="device", value="Test CPU"),),
        "candidates": (
            CandidateRow(dispatcher="alltoall", position=0, included=True, reasons=(f"the baseline{hostile}",)),
            CandidateRow(dispatcher="deepep", position=1, included=False, reasons=("moves tokens on CUDA only",)),
        ),
        "gates": (
            GateRow(backend="alltoall", available=True, level="imports", provider="torch", version="2.13"),
            GateRow(backend="deepep", available=False, level="none", reason=f"absent{hostile}", fix="install it"),
        ),
        "traffic": traffic_rows(rows, {"force_balanced": {"rows_rank": 3688.2}}),
        "config": (ConfigBlock(title="Megatron-LM", text=f"--moe-token-dispatcher-type alltoall{hostile}"),),
        "findings": (
            Finding(id="extra", severity=Severity.WARNING, message=f"seen{hostile}", why="so", advice=("a",)),
        ),
    }
    return ReportData.model_validate(fields | changes)
