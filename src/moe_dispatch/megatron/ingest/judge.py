"""Status of a run by evidence, with its reason and fix, and the findings that go with it.

A replaced dispatcher comes first, then what stopped the run, then what is missing from it; `ok` is what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.evidence.training import Activation, LossHealth, RunOutcome
from moe_dispatch.megatron.effective import Effective
from moe_dispatch.megatron.ingest.activation import contradiction
from moe_dispatch.megatron.ingest.facts import RunFacts
from moe_dispatch.megatron.ingest.recompute import recompute_finding
from moe_dispatch.megatron.ingest.timeline import Timeline
from moe_dispatch.megatron.ingest.view import Settings

UNKNOWN = "unknown"
_REFUSED = (RunStatus.FELL_BACK, RunStatus.INCORRECT)
"""A run that looks like a measurement and is none: worse than one that failed."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Status with reason and fix."""

    status: RunStatus
    reason: str = ""
    fix: str = ""
    outcome: RunOutcome = field(default_factory=RunOutcome)


def judge(
    requested: str,
    effective: Effective | None,
    activation: Activation,
    facts: RunFacts,
    line: Timeline,
    loss: LossHealth,
) -> Judged:
    """The first of these that holds: replaced, stopped, incomplete, not finite, not proven; else `ok`.

    Args:
        requested: dispatcher that was asked for, `unknown` where nothing says.
    """
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


def findings_of(
    facts: RunFacts, settings: Settings, line: Timeline, effective: Effective | None, judged: Judged
) -> list[Finding]:
    """What a reader should know besides the status."""
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
    if judged.status in _REFUSED:
        identity = f"ingest-{judged.status.value.replace('_', '-')}"
        found.append(_finding(identity, judged.reason, Severity.ERROR, (judged.fix,)))
    if judged.outcome.reason_class == "recompute-mismatch":
        found.append(recompute_finding(effective.effective if effective else None, settings, facts.outcome.shapes))
    return found


def _finding(
    identity: str, message: str, severity: Severity = Severity.WARNING, advice: tuple[str, ...] = ()
) -> Finding:
    return Finding(id=identity, severity=severity, message=message, advice=advice, source="ingest")
