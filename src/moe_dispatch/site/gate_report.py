"""From how a gate's child ended to a GateResult: levels, the first reason, and what was seen beside it."""

from __future__ import annotations

from typing import Any

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.site.environment import mask_environment_values
from moe_dispatch.site.gate_classify import diagnose_exit, diagnose_report, diagnose_timeout
from moe_dispatch.site.gate_consumer import Wanted
from moe_dispatch.site.gate_diagnosis import Diagnosis, last_line
from moe_dispatch.site.gate_process import OUTPUT_TAIL, Ended
from moe_dispatch.site.gate_result import LEVELS, GateResult, Level, LevelResult
from moe_dispatch.site.gate_shadow import shadow
from moe_dispatch.site.gate_support import Support, check_support
from moe_dispatch.site.model import Site

NO_ADAPTER = "no adapter in this release"
ONE_PROCESS = "one process only; it takes a group of ranks"
_BELOW = "a lower level was not reached"
_TORCH_HINT = "install torch for this machine, or `pip install 'moe-dispatch[torch]'`"


def result_of(wanted: Wanted, ended: Ended, timeout_s: float, site: Site | None) -> GateResult:
    """Put together what a child reported and what the machine supports."""
    spec, report = wanted.spec, ended.report or {}
    diagnosis = _diagnose(wanted, ended, timeout_s)
    imported = diagnosis is None
    support = check_support(spec, site, report) if imported and site is not None else None
    if support is not None and support.failures:
        diagnosis = support.failures[0]
    error = report.get("error") or {}
    detail = "\n".join(part for part in (ended.output.strip(), error.get("traceback", "").strip()) if part)
    levels = _levels(spec, report, imported, support, site, diagnosis)
    return GateResult(
        backend=spec.name,
        level_reached=next((each.level for each in reversed(levels) if each.state == "passed"), "none"),
        levels=levels,
        available=diagnosis is None,
        reason_class=diagnosis.reason_class if diagnosis else "",
        variant=diagnosis.variant if diagnosis else "",
        reason=mask_environment_values(diagnosis.reason) if diagnosis else "",
        fix=diagnosis.fix if diagnosis else "",
        consumer=wanted.consumer,
        provider=report.get("provider"),
        version=report.get("version"),
        commit=report.get("commit"),
        file=report.get("file"),
        built_for_torch=report.get("requires_torch"),
        architectures=support.architectures if support else (),
        apis=tuple(report.get("apis") or ()),
        notes=_notes(report, support, diagnosis),
        detail=mask_environment_values(detail)[-OUTPUT_TAIL:],
        seconds=ended.seconds,
    )


def _diagnose(wanted: Wanted, ended: Ended, timeout_s: float) -> Diagnosis | None:
    report, first = ended.report or {}, wanted.needs[0].module
    hint = wanted.spec.install_hint
    if wanted.spec.kind == "builtin" and str(report.get("top")) == "torch":
        hint = _TORCH_HINT
    if report.get("ok"):
        return None
    if ended.returncode is None:
        return diagnose_timeout(str(report.get("step", first)), timeout_s)
    if report.get("error") or report.get("absent"):
        return diagnose_report(report, hint)
    if ended.report is None and ended.returncode >= 0:
        what = last_line(ended.output) or f"it ended with status {ended.returncode}"
        return Diagnosis("other", f"the interpreter did not run the gate: {what}", "run it by hand")
    return diagnose_exit(str(report.get("step", first)), ended.returncode, ended.output)


def _levels(
    spec: BackendSpec,
    report: dict[str, Any],
    imported: bool,
    support: Support | None,
    site: Site | None,
    diagnosis: Diagnosis | None,
) -> tuple[LevelResult, ...]:
    reason = diagnosis.reason if diagnosis else ""
    package = " ".join(str(report[key]) for key in ("provider", "version") if report.get(key))
    found = bool(report.get("found")) and not (diagnosis and diagnosis.reason_class == "not-installed")
    installed = (
        LevelResult(level="installed", state="passed", evidence=(package,) if package else ())
        if found
        else LevelResult(level="installed", state="failed", reason=reason)
    )
    if imported:
        imports = LevelResult(level="imports", state="passed", evidence=tuple(report.get("apis") or ()))
    elif found:
        imports = LevelResult(level="imports", state="failed", reason=mask_environment_values(reason))
    else:
        imports = not_run("imports", _BELOW)
    supported = _supported(spec, support, site) if imported else not_run("supported", _BELOW)
    good = imported and supported.state != "failed"
    why = _BELOW if not good else NO_ADAPTER if spec.target is None else ONE_PROCESS
    return (installed, imports, supported, *(not_run(level, why) for level in LEVELS[3:]))


def _supported(spec: BackendSpec, support: Support | None, site: Site | None) -> LevelResult:
    if support is None or site is None:
        return not_run("supported", "the machine was not looked at")
    if support.failures:
        reason = "; ".join(failure.reason for failure in support.failures)
        return LevelResult(level="supported", state="failed", reason=reason, evidence=support.evidence)
    if spec.kind == "builtin":
        return LevelResult(level="supported", state="passed", evidence=("needs torch only", *support.evidence))
    if site.device == "cpu" and "cpu" not in (spec.platforms or spec.capabilities.devices):
        return LevelResult(level="supported", state="not-run", reason="needs a GPU", evidence=support.evidence)
    return LevelResult(level="supported", state="passed", evidence=support.evidence)


def _notes(report: dict[str, Any], support: Support | None, diagnosis: Diagnosis | None) -> tuple[str, ...]:
    notes = list(support.notes) if support else []
    notes += [failure.reason for failure in support.failures[1:]] if support else []
    shadowed = shadow(report)
    if shadowed and not (diagnosis and diagnosis.reason_class == "shadowed-module"):
        notes.append(shadowed)
    built, running = report.get("requires_torch"), report.get("torch_version")
    if built and running and built.partition("+")[0] != running.partition("+")[0]:
        notes.append(f"{report.get('provider')} asks for torch {built}; torch {running} is installed")
    return tuple(notes)


def not_run(level: Level, reason: str) -> LevelResult:
    """A level that nobody looked at."""
    return LevelResult(level=level, state="not-run", reason=reason)
