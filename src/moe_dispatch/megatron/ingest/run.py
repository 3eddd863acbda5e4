"""One run, read and judged: effective dispatcher, proof that it ran, status with its reason.

A status is given by evidence: a replaced dispatcher first, then what stopped the run, then what is missing from it;
`ok` is what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.evidence.training import Activation, LossHealth, RunOutcome
from moe_dispatch.megatron.effective import Effective, effective_dispatcher
from moe_dispatch.megatron.ingest.activation import contradiction, prove
from moe_dispatch.megatron.ingest.dumps import STAGES, Stage, read_config_file
from moe_dispatch.megatron.ingest.facts import RunFacts
from moe_dispatch.megatron.ingest.metrics import loss_of
from moe_dispatch.megatron.ingest.nsys import Profile, read_profile
from moe_dispatch.megatron.ingest.recompute import recompute_finding
from moe_dispatch.megatron.ingest.timeline import Timeline, WindowRequest, timeline
from moe_dispatch.megatron.ingest.view import VALIDATED, Settings
from moe_dispatch.megatron.settings import UnknownSetting
from moe_dispatch.megatron.settings_fields import settings_fields
from moe_dispatch.site.hardware import Hardware

UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What belongs to one run.

    Fields:
        logs: its files, in any order.
        config: ConfigContainer YAML; `config_saved` says that the run itself wrote it after validation.
        profile: SQLite export of an Nsight Systems profile of the run.
        arm: dispatcher that the run was meant to measure; None takes it from the configuration.
        gpu: where the user names it; logs do not.
        environment: of the run, where known.
        window: iterations that count; None applies the default rule.
    """

    logs: tuple[Path, ...]
    config: Path | None = None
    config_saved: bool = False
    profile: Path | None = None
    arm: str | None = None
    gpu: Hardware | None = None
    environment: Mapping[str, str] | None = None
    window: WindowRequest | None = None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Status with reason and fix."""

    status: RunStatus
    reason: str = ""
    fix: str = ""
    outcome: RunOutcome = field(default_factory=RunOutcome)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, read.

    Fields:
        requested: dispatcher that was asked for, `unknown` where nothing says.
        effective: of the last configuration that was seen; None where there is none.
    """

    request: RunRequest
    facts: RunFacts
    settings: Settings
    timeline: Timeline
    requested: str
    effective: Effective | None
    activation: Activation
    loss: LossHealth
    profile: Profile | None
    judged: Judged
    findings: tuple[Finding, ...]

    @property
    def dispatcher(self) -> str:
        """What the record is about: what ran, or where it did not run, what was asked for."""
        ran = self.effective.effective if self.effective is not None else None
        if self.judged.status in (RunStatus.UNAVAILABLE, RunStatus.UNSUPPORTED, RunStatus.FELL_BACK):
            return self.requested
        return ran or self.requested


def read_run(request: RunRequest) -> Run:
    """Read and judge one run.

    Raises:
        UsageError: a file cannot be read, or is not what it was given as.
    """
    facts = RunFacts()
    facts.read(request.logs)
    dumps = list(facts.dumps)
    if request.config is not None:
        dumps.append(read_config_file(request.config, saved_by_run=request.config_saved))
        facts.framework = facts.framework or "megatron-bridge"
    settings = Settings(dumps, facts.versions.get("megatron_core"))
    line = timeline(
        (*facts.lines.values(), *facts.conflicts),
        starts=facts.starts,
        log_interval=settings.integer("log_interval", "logger.log_interval"),
        window=request.window,
    )
    profile = read_profile(request.profile) if request.profile is not None else None
    for name, kernels in (profile.backends if profile is not None else {}).items():
        facts.activation.found.setdefault(name, {}).setdefault("kernels", f"in the profile: {', '.join(kernels[:3])}")
    loss = loss_of(line.printed)
    effective, requested = _dispatchers(request, facts, settings)
    activation = _activation(effective, facts, settings, loss)
    judged = _judge(requested, effective, activation, facts, line, loss)
    return Run(
        request=request,
        facts=facts,
        settings=settings,
        timeline=line,
        requested=requested,
        effective=effective,
        activation=activation,
        loss=loss,
        profile=profile,
        judged=judged,
        findings=tuple(_findings(facts, settings, line, effective, judged)),
    )


def _dispatchers(request: RunRequest, facts: RunFacts, settings: Settings) -> tuple[Effective | None, str]:
    """The effective dispatcher of the last stage; what was asked for by the user, an earlier stage, or the same one."""
    last = _effective(facts, settings, request, None)
    requested = request.arm
    earlier = [stage for stage in STAGES if stage not in VALIDATED and stage in settings.stages]
    if requested is None and earlier and settings.last_stage in VALIDATED:
        asked = _effective(facts, settings, request, earlier[-1])
        requested = (asked.requested or asked.effective) if asked is not None else None
    if requested is None and last is not None:
        named = _named_backend(settings) if settings.last_stage in VALIDATED else last.requested
        requested = named or last.effective
    return last, requested or UNKNOWN


def _named_backend(settings: Settings) -> str | None:
    """A backend that a validated dump names although it is not the default: somebody asked for it."""
    backend = settings.get("moe_flex_dispatcher_backend")
    default = settings_fields()["moe_flex_dispatcher_backend"].default
    return backend if isinstance(backend, str) and backend != default else None


def _effective(facts: RunFacts, settings: Settings, request: RunRequest, until: Stage | None) -> Effective | None:
    if not settings.stages:
        return None
    config = settings.config(facts.framework, facts.world, request.environment or {}, until=until)
    try:
        return effective_dispatcher(config)
    except UnknownSetting:
        return None


def _activation(effective: Effective | None, facts: RunFacts, settings: Settings, loss: LossHealth) -> Activation:
    name = effective.effective if effective is not None else None
    stage = settings.last_stage
    if name is None or stage is None:
        return prove("", {})
    deduced = ""
    if stage in VALIDATED and loss.last is not None and not facts.outcome.fell_back:
        deduced = (
            f"the {stage} lead to {name}, Megatron-Core never falls back from there, and iterations with a finite loss "
            "were printed"
        )
    return prove(name, facts.activation.found, configured=f"named by the {stage}", deduced=deduced)


def _judge(
    requested: str,
    effective: Effective | None,
    activation: Activation,
    facts: RunFacts,
    line: Timeline,
    loss: LossHealth,
) -> Judged:
    ending = facts.outcome.ending(measured=line.complete, finished=line.finished)
    replaced = _replaced(requested, effective, facts)
    if ending.status is RunStatus.FELL_BACK:
        return Judged(status=ending.status, reason=ending.reason, fix=ending.fix, outcome=ending.outcome)
    if replaced and not (ending.status is not None and not line.printed):
        fix = "make request and effective configuration agree (moe-dispatch lint), then run again"
        return Judged(status=RunStatus.FELL_BACK, reason=replaced, fix=fix, outcome=ending.outcome)
    if ending.status is not None:
        reason = ending.reason
        if line.printed:
            reason += f" (at iteration {line.printed[-1].line.iteration} of {line.planned})"
        return Judged(status=ending.status, reason=reason, fix=ending.fix, outcome=ending.outcome)
    missing = _missing(line, loss)
    if missing is not None:
        return Judged(status=missing[0], reason=missing[1], fix=missing[2], outcome=ending.outcome)
    if not activation.proven:
        reason = (
            "nothing in the log or profile shows which dispatcher was built"
            if activation.level == "none"
            else f"the dispatcher is only named by a configuration from before validation ({activation.evidence[0]})"
        )
        fix = "give the log with the argument dump or Configuration Summary, a profile (--nsys), or a traced run"
        return Judged(status=RunStatus.UNPROVEN, reason=reason, fix=fix, outcome=ending.outcome)
    return Judged(status=RunStatus.OK, outcome=ending.outcome)


def _replaced(requested: str, effective: Effective | None, facts: RunFacts) -> str:
    """Why another dispatcher ran than the one that was asked for; empty when none did."""
    name = effective.effective if effective is not None else None
    other = contradiction(name or requested, facts.activation.found)
    if other is not None:
        return f"{name or requested} was configured, and {other[0]} ran ({other[1]})"
    if name is not None and requested not in (UNKNOWN, name):
        return f"{requested} was requested, and {name} is in effect"
    return ""


def _missing(line: Timeline, loss: LossHealth) -> tuple[RunStatus, str, str] | None:
    """What a performance needs and this run lacks."""
    if not line.printed:
        fix = "give the log of the last rank (Megatron prints iterations there), or look at why the run did not start"
        return RunStatus.TRUNCATED, "no iteration was printed", fix
    if not line.complete:
        window = line.window
        last = line.printed[-1].line.iteration
        reason = (
            f"{window.found} of the {window.needed} iteration lines of the window were found; the last is iteration "
            f"{last} of {line.planned}"
        )
        return RunStatus.TRUNCATED, reason, "give all files of the run, or a --window that it completed"
    if loss.not_finite:
        numbers = ", ".join(map(str, loss.not_finite[:5]))
        reason = f"the loss or the gradient norm is not finite at iteration {numbers}"
        return RunStatus.INCORRECT, reason, "find out why training diverges before timing it"
    skipped = [one.line.iteration for one in line.counted if one.line.skipped]
    if skipped:
        reason = f"iterations were skipped inside the window ({', '.join(map(str, skipped[:5]))})"
        return RunStatus.INCORRECT, reason, "a skipped step does less work; choose a window without one"
    return None


def _findings(
    facts: RunFacts, settings: Settings, line: Timeline, effective: Effective | None, judged: Judged
) -> Sequence[Finding]:
    found = list(effective.findings) if effective is not None else []
    if settings.contradictions:
        fields = ", ".join(sorted(set(settings.contradictions)))
        found.append(
            _finding("ingest-config-contradicts", f"the files name two values of {fields}; they count as unknown")
        )
    if facts.unattributed:
        message = f"{facts.unattributed} iteration lines carry no readable iteration number; their values count nowhere"
        found.append(_finding("ingest-unattributed-lines", message))
    if line.restarts:
        found.append(
            _finding("ingest-restarted", f"the run restarted {line.restarts}x; the last attempt of an iteration counts")
        )
    if judged.status is RunStatus.OK and judged.outcome.fallout:
        message = f"after or beside the work: {judged.outcome.fallout[0]}"
        found.append(_finding("ingest-messages-after-the-work", message, Severity.INFO))
    if judged.outcome.reason_class == "recompute-mismatch":
        found.append(recompute_finding(effective.effective if effective else None, settings, facts.outcome.shapes))
    return found


def _finding(identity: str, message: str, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(id=identity, severity=severity, message=message, source="ingest")
