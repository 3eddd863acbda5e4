"""One run, read: its files, its effective dispatcher, and how strongly it is proven that the dispatcher ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moe_dispatch.core.finding import Finding
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.evidence.training import Activation, LossHealth
from moe_dispatch.megatron.effective import Effective, effective_dispatcher
from moe_dispatch.megatron.ingest.activation import prove
from moe_dispatch.megatron.ingest.dumps import STAGES, Stage, read_config_file
from moe_dispatch.megatron.ingest.facts import RunFacts
from moe_dispatch.megatron.ingest.judge import UNKNOWN, Judged, findings_of, judge
from moe_dispatch.megatron.ingest.metrics import loss_of
from moe_dispatch.megatron.ingest.nsys import Profile, read_profile
from moe_dispatch.megatron.ingest.timeline import Timeline, WindowRequest, timeline
from moe_dispatch.megatron.ingest.view import VALIDATED, Settings
from moe_dispatch.megatron.settings import UnknownSetting
from moe_dispatch.megatron.settings_fields import settings_fields
from moe_dispatch.site.hardware import Hardware


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What belongs to one run.

    Fields:
        logs: its files, in any order.
        config: ConfigContainer YAML; `config_saved` says that the run itself wrote it after validation.
        profile: SQLite export of an Nsight Systems profile of the run.
        arm: dispatcher that the run was meant to measure; None takes it from the configuration.
        gpu: where the user names it; logs do not.
        ranks: of the job, where no log says (Megatron-Bridge).
        environment: of the run, where known.
        window: iterations that count; None applies the default rule.
    """

    logs: tuple[Path, ...]
    config: Path | None = None
    config_saved: bool = False
    profile: Path | None = None
    arm: str | None = None
    gpu: Hardware | None = None
    ranks: int | None = None
    environment: Mapping[str, str] | None = None
    window: WindowRequest | None = None


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
    judged = judge(requested, effective, activation, facts, line, loss)
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
        findings=tuple(findings_of(facts, settings, line, effective, judged)),
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
    config = settings.config(
        facts.framework, settings.integer("world_size") or request.ranks, request.environment or {}, until=until
    )
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
