"""From the records of a session to the verdict, the configuration that follows from it, and the files of both."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moe_dispatch.core.errors import MissingDependency, MoeDispatchError, StoreError
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.guide import Candidate
from moe_dispatch.decide.verdict import Verdict, decide
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.flow import summary
from moe_dispatch.flow.configure import acceptance, config_blocks, configure, one_flag_a_line, plan_block
from moe_dispatch.flow.request import SelectRequest
from moe_dispatch.flow.setup import Setup
from moe_dispatch.flow.stages import BASELINE, DECIDE
from moe_dispatch.megatron.emit import AbPlan, Emitted
from moe_dispatch.report.data import ReportData

VERDICT_FILE, REPORT_FILE = "verdict.json", "report.html"


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What a `select` ends with.

    Fields:
        emitted: configuration of what is recommended; None when nothing is, or it cannot be configured.
        plan: the training A/B that would accept it; None when there is nothing to accept.
        data: everything that the reports show.
        files: what was written, by what it is.
    """

    verdict: Verdict
    emitted: Emitted | None
    plan: AbPlan | None
    data: ReportData
    files: Mapping[str, Path]
    store: Path

    @property
    def statement(self) -> str:
        """The verdict in words, for the other nodes."""
        return f"{self.verdict.kind.value}: {self.verdict.statement}"


def conclude(
    request: SelectRequest,
    setup: Setup,
    found: Sequence[Candidate],
    records: Sequence[RunRecord],
    findings: Sequence[Finding],
) -> Conclusion:
    """Decide, configure and write.

    Raises:
        UsageError: an attested field that does not exist.
        StoreError: a file cannot be written.
    """
    verdict = decide(
        records,
        simplicity={name: spec.simplicity for name, spec in setup.specs.items()},
        baseline=_baseline(records),
        threshold=request.threshold,
        attest=request.attest,
        routing=setup.workload.routing_spec.canonical,
    )
    found_wrong = [*findings, *setup.findings]
    emitted: Emitted | None = None
    plan: AbPlan | None = None
    known = (verdict, setup.specs, setup.workload, setup.site, request.core_version)
    try:
        emitted, plan = configure(*known), acceptance(*known)
    except MoeDispatchError as error:
        found_wrong.append(_not_configured(error))
    config = (*(config_blocks(emitted) if emitted else ()), *([plan_block(plan)] if plan else []))
    layout = setup.workload.layout
    tokens = next((record.contract.workload["tokens_per_rank"] for record in records if record.performance), None)
    data = summary.report_data(
        title=f"{setup.workload.model.title or setup.workload.model.name}, EP {layout.ep}",
        records=records,
        verdict=verdict,
        workload=summary.workload_rows(setup.workload, tokens),
        site=summary.site_rows(setup.site, setup.stack),
        candidates=found,
        gates=setup.gates,
        traffic=summary.expected_traffic(setup.workload, records, setup.world, setup.ranks_per_domain or setup.nproc),
        config=config,
        findings=found_wrong,
    )
    out = Path(request.measure.out)
    files = write_config(out, emitted, plan)
    conclusion = Conclusion(
        verdict=verdict, emitted=emitted, plan=plan, data=data, files=files, store=request.measure.store_path
    )
    files["verdict"] = write_text(out / VERDICT_FILE, json.dumps(document(conclusion), indent=1) + "\n")
    try:
        from moe_dispatch.report.html import write_html

        files["report"] = write_html(data, out / REPORT_FILE)
    except MissingDependency as error:
        note = Finding(id="no-html-report", severity=Severity.INFO, message=error.message, advice=(error.fix,))
        return replace(conclusion, data=data.model_copy(update={"findings": (*data.findings, note)}))
    return conclusion


def document(conclusion: Conclusion) -> dict[str, Any]:
    """The machine-readable result: what `verdict.json` and `select --json` hold."""
    data = conclusion.data
    return {
        "schema_version": 1,
        "session": data.session,
        "created": data.created,
        "tool_version": data.tool_version,
        "title": data.title,
        "verdict": conclusion.verdict.model_dump(mode="json"),
        "configuration": conclusion.emitted.model_dump(mode="json") if conclusion.emitted else None,
        "training_ab": conclusion.plan.model_dump(mode="json") if conclusion.plan else None,
        "candidates": [row.model_dump(mode="json") for row in data.candidates],
        "gates": [row.model_dump(mode="json") for row in data.gates],
        "workload": {row.name: row.value for row in data.workload},
        "site": {row.name: row.value for row in data.site},
        "traffic": [row.model_dump(mode="json") for row in data.traffic],
        "findings": [finding.model_dump(mode="json") for finding in data.all_findings],
        "records": [record.run_id for record in data.records],
        "store": str(conclusion.store),
        "files": {name: str(path) for name, path in conclusion.files.items()},
    }


def write_config(out: Path, emitted: Emitted | None, plan: AbPlan | None) -> dict[str, Path]:
    """Write the configuration as files that commands can take.

    Raises:
        StoreError: a file cannot be written.
    """
    files: dict[str, Path] = {}
    if emitted is not None and emitted.emitted is not None:
        files["megatron_lm"] = write_text(out / "megatron_lm.args", one_flag_a_line(emitted.megatron_lm_args) + "\n")
        files["bridge"] = write_text(out / "bridge.overrides", "\n".join(emitted.bridge_overrides) + "\n")
        if emitted.environment:
            lines = [f"export {name}={value}" for name, value in emitted.environment.items()]
            files["environment"] = write_text(out / "environment.sh", "\n".join(lines) + "\n")
    if plan is not None:
        files["training_ab"] = write_text(out / "training_ab.sh", plan_block(plan).text + "\n")
    return files


def require_writable(out: Path) -> None:
    """Refuse an output directory that cannot be written, before anything is measured.

    Raises:
        StoreError: says why.
    """
    probe = write_text(out / f".probe.{secrets.token_hex(4)}", "")
    probe.unlink()


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        if temporary.is_file():
            os.unlink(temporary)
        raise StoreError(f"{path} cannot be written: {error.strerror}", "choose another --out directory") from error
    return path


def _baseline(records: Sequence[RunRecord]) -> str | None:
    """Label of the baseline's variant that the deciding stage ran."""
    ran = [r.choice.label for r in records if r.stage == DECIDE and r.choice.dispatcher == BASELINE and r.performance]
    return ran[0] if ran else None


def _not_configured(error: MoeDispatchError) -> Finding:
    return Finding(
        id="not-configured",
        severity=Severity.WARNING,
        message=f"no configuration was written: {error.message}",
        advice=(error.fix,) if error.fix else (),
        source="megatron",
    )
