"""What a report is made of: plain rows, so that the same data feed the terminal and the HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moe_dispatch.core.finding import Finding
from moe_dispatch.decide.verdict import Verdict
from moe_dispatch.evidence.record import Model, RunRecord, RunStatus, Traffic

TRAFFIC_NAMES = (
    "rows_copies",
    "rows_copies_off_rank",
    "rows_copies_off_domain",
    "rows_rank",
    "rows_rank_off_rank",
    "rows_rank_off_domain",
    "rows_domain",
    "rows_domain_off_domain",
)


class Row(Model):
    """A name and its value, as shown."""

    name: str
    value: str


class CandidateRow(Model):
    """One dispatcher of the guide: its place, whether it was a candidate here, and why."""

    dispatcher: str
    position: int
    included: bool
    reasons: tuple[str, ...] = ()
    knobs: str = ""


class GateRow(Model):
    """Whether a backend can run here.

    Fields:
        level: how far the proof went (`none`, `installed`, `imports`, ...).
    """

    backend: str
    available: bool
    level: str
    provider: str = ""
    version: str = ""
    reason: str = ""
    fix: str = ""


class TrafficRow(Model):
    """Rows of one direction under one routing, summed over ranks; times `row_bytes` gives bytes."""

    routing: str
    name: str
    row_bytes: int
    counted: int | None = None
    expected: float | None = None


class ConfigBlock(Model):
    """Text to copy: arguments, overrides, environment, or a plan."""

    title: str
    text: str
    note: str = ""


class ReportData(Model):
    """Everything that a report shows.

    Fields:
        title: what was asked, for example `qwen3-30b-a3b, EP 4`.
        created: time of the report, ISO 8601.
        records: all attempts of the session; the HTML file embeds them whole.
        workload, site: summaries.
        config: emitted configuration, and the training A/B that would accept it.
        findings: of gate, guide or store; those of the verdict are shown anyway.
    """

    title: str
    session: str
    created: str
    tool_version: str
    verdict: Verdict
    records: tuple[RunRecord, ...]
    workload: tuple[Row, ...] = ()
    site: tuple[Row, ...] = ()
    candidates: tuple[CandidateRow, ...] = ()
    gates: tuple[GateRow, ...] = ()
    traffic: tuple[TrafficRow, ...] = ()
    config: tuple[ConfigBlock, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Findings of the verdict first, then the rest, each once."""
        return tuple({(one.id, one.message): one for one in (*self.verdict.findings, *self.findings)}.values())


def traffic_rows(
    records: Sequence[RunRecord], expected: Mapping[str, Mapping[str, float]] | None = None
) -> tuple[TrafficRow, ...]:
    """Counted rows of each routing, beside what was expected.

    Args:
        records: attempts that ran the same tokens; the last `ok` one of each routing is counted.
        expected: routing to row counts by name, summed over ranks.
    """
    counted: dict[str, Traffic] = {}
    for record in records:
        if record.status is RunStatus.OK and record.traffic is not None:
            counted[str(record.contract.workload.get("routing"))] = record.traffic
    return tuple(
        TrafficRow(
            routing=routing,
            name=name,
            row_bytes=traffic.row_bytes,
            counted=getattr(traffic, name),
            expected=(expected or {}).get(routing, {}).get(name),
        )
        for routing, traffic in counted.items()
        for name in TRAFFIC_NAMES
    )
