"""Plain rows for reports, from what a session knew and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone

import moe_dispatch
from moe_dispatch.core.finding import Finding
from moe_dispatch.decide.guide import Candidate
from moe_dispatch.decide.verdict import Verdict
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.report.data import CandidateRow, ConfigBlock, GateRow, ReportData, Row, TrafficRow, traffic_rows
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site
from moe_dispatch.workload.routing import RoutingSpec
from moe_dispatch.workload.traffic import expected_rows
from moe_dispatch.workload.workload import Workload


def report_data(
    *,
    title: str,
    records: Sequence[RunRecord],
    verdict: Verdict,
    workload: tuple[Row, ...] = (),
    site: tuple[Row, ...] = (),
    candidates: Sequence[Candidate] = (),
    gates: Mapping[str, GateResult] | None = None,
    traffic: tuple[TrafficRow, ...] | None = None,
    config: Sequence[ConfigBlock] = (),
    findings: Sequence[Finding] = (),
) -> ReportData:
    """Everything a report shows; what is not given is taken from the records or left out."""
    return ReportData(
        title=title,
        session=records[-1].session if records else "",
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tool_version=moe_dispatch.__version__,
        verdict=verdict,
        records=tuple(records),
        workload=workload or contract_rows(records, "workload"),
        site=site or contract_rows(records, "site"),
        candidates=tuple(candidate_row(candidate) for candidate in candidates),
        gates=tuple(gate_row(gate) for gate in (gates or {}).values()),
        traffic=traffic_rows(records) if traffic is None else traffic,
        config=tuple(config),
        findings=tuple(findings),
    )


def contract_rows(records: Sequence[RunRecord], group: str) -> tuple[Row, ...]:
    """Contract fields that all records share and know."""
    fields = [getattr(record.contract, group) for record in records]
    if not fields:
        return ()
    return tuple(
        Row(name=name.replace("_", " "), value=str(value))
        for name, value in fields[0].items()
        if value not in (None, "none") and all(other.get(name) == value for other in fields)
    )


def workload_rows(workload: Workload, tokens: int | None) -> tuple[Row, ...]:
    """What is trained, and how much of it was run."""
    model, layout = workload.model, workload.layout
    rows = {
        "model": model.title or model.name,
        "experts": f"{model.num_experts}, top {model.topk}",
        "hidden, expert ffn": f"{model.hidden}, {model.moe_ffn_hidden}",
        "MoE layers": str(model.num_moe_layers),
        "layout": f"TP {layout.tp}, PP {layout.pp}, CP {layout.cp}, EP {layout.ep}, ETP {layout.expert_tp}",
        "precision": workload.precision,
        "routing": workload.routing_spec.canonical,
        "tokens per rank": f"{workload.tokens_per_rank}" + (f" ({tokens} were run)" if tokens else ""),
        "row": f"{workload.row_bytes} bytes",
        "source": model.source,
    }
    return tuple(Row(name=name, value=value) for name, value in rows.items() if value)


def site_rows(site: Site, stack: Mapping[str, str | None]) -> tuple[Row, ...]:
    """Where it ran."""
    rows = {
        "site": site.summary,
        "processor": site.cpu_model,
        "hosts": ", ".join(site.hosts),
        "transport": site.transport,
        "fabric": site.fabric,
        "software": ", ".join(f"{name} {version}" for name, version in stack.items() if version),
    }
    return tuple(Row(name=name, value=value) for name, value in rows.items() if value)


def candidate_row(candidate: Candidate) -> CandidateRow:
    """One line of the guide's table."""
    swept = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in candidate.sweep.items())
    return CandidateRow(
        dispatcher=candidate.choice.dispatcher,
        position=candidate.position,
        included=candidate.included,
        reasons=tuple(reason.text for reason in candidate.reasons),
        knobs=swept,
    )


def gate_row(gate: GateResult) -> GateRow:
    """One line of the gate's table."""
    return GateRow(
        backend=gate.backend,
        available=gate.available,
        level=gate.level_reached,
        provider=gate.provider or "",
        version=gate.version or "",
        reason=gate.reason,
        fix=gate.fix,
    )


def expected_traffic(
    workload: Workload, records: Sequence[RunRecord], world: int, ranks_per_domain: int
) -> tuple[TrafficRow, ...]:
    """Counted rows beside the expectation for the same tokens, summed over ranks."""
    ran = [record for record in records if record.traffic is not None]
    if not ran:
        return ()
    tokens = ran[-1].contract.workload["tokens_per_rank"]
    same = [record for record in ran if record.contract.workload["tokens_per_rank"] == tokens]
    expected: dict[str, dict[str, float]] = {}
    for routing in {str(record.contract.workload["routing"]) for record in same}:
        router = workload.model.router
        rows = expected_rows(
            workload.model.num_experts,
            workload.model.topk,
            world,
            ranks_per_domain,
            tokens,
            routing=RoutingSpec.parse(routing),
            num_groups=router.num_groups,
            group_topk=router.group_topk,
            seed=int(same[-1].contract.measure["seed"]),
        )
        expected[routing] = {name: value * world for name, value in asdict(rows).items() if name.startswith("rows_")}
    return traffic_rows(same, expected)
