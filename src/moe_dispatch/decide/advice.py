"""What `advise` says, as data: ceiling, candidates with knobs, environment and configuration, evidence, path.

Advice is a prior with its reasons. It holds no verdict: what is measured on the job's own machines overrules it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.choice import KnobValue
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.advice_evidence import Claims, NearRow
from moe_dispatch.decide.ceiling import Ceiling
from moe_dispatch.decide.guide import Candidate
from moe_dispatch.decide.guide_condition import Stage
from moe_dispatch.decide.prior_words import Confidence
from moe_dispatch.megatron.configuration import Emitted

SCHEMA_VERSION = 1


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Remark(_Data):
    """A piece of guidance that holds here: `rule` is its id, `guard` what of this package enforces it."""

    rule: str
    text: str
    guard: str = ""
    sources: tuple[str, ...] = ()


class Step(Remark):
    """A step of the path; `now` when the job is said to be in its stage."""

    stage: Stage
    now: bool
    commands: tuple[str, ...] = ()


class DefaultSaid(_Data):
    """A default of a knob: where it holds, and who sets it."""

    value: KnobValue
    who: Literal["library", "harness"]
    label: str


class KnobAdvice(_Data):
    """One knob of a candidate.

    Fields:
        megatron: whether Megatron has it; a knob of this package's own dispatchers is for measuring only.
        here: the default that this release uses for this group; None when the library decides or it is unknown.
        defaults: all of them, by release and by who sets them.
        sweep: values to try.
    """

    knob: str
    megatron: bool
    here: KnobValue
    defaults: tuple[DefaultSaid, ...] = ()
    sweep: tuple[KnobValue, ...] = ()
    text: str = ""
    sources: tuple[str, ...] = ()


class VariableAdvice(_Data):
    """One environment variable with its value for this layout and site."""

    name: str
    value: str
    how: Literal["set", "own", "unset", "build", "equal"]
    text: str
    sources: tuple[str, ...] = ()


class CombinationAdvice(_Data):
    """Whether a feature goes with the dispatchers named; every one when none is."""

    rule: str
    feature: str
    verdict: Literal["legal", "illegal", "needs"]
    dispatchers: tuple[str, ...]
    text: str
    sources: tuple[str, ...] = ()


class CandidateAdvice(_Data):
    """A candidate with everything that selecting it takes.

    Fields:
        candidate: place, reasons and gate, as the guide has them.
        findings: of its group on this site.
        configuration: None when Megatron ships no such dispatcher or refuses it here; `not_configured` says why.
    """

    candidate: Candidate
    knobs: tuple[KnobAdvice, ...] = ()
    environment: tuple[VariableAdvice, ...] = ()
    findings: tuple[Finding, ...] = ()
    configuration: Emitted | None = None
    not_configured: str = ""

    @property
    def name(self) -> str:
        """The dispatcher."""
        return self.candidate.choice.dispatcher

    @property
    def blocked(self) -> str:
        """Why it cannot run as the layout and site are; empty when nothing is known against it."""
        return next((one.message for one in self.findings if one.severity is Severity.ERROR), "")


class Advice(_Data):
    """All of it.

    Fields:
        workload: contract fields of the workload. site: name and summary.
        path: bring-up to tuned. candidates: the baseline, then in the order of the guide, then what is left out.
        environment: variables that every arm needs.
        pairs, knobs, steps, recipes: nearest published evidence. claims: what sources favour here; they may conflict.
        next: what to measure next, most informative first.
        findings: about the job as a whole.
    """

    schema_version: int = SCHEMA_VERSION
    workload: dict[str, Any]
    site: str
    site_summary: str
    stage: Stage | None
    core_version: str
    ceiling: Ceiling
    confidence: Confidence
    path: tuple[Step, ...]
    candidates: tuple[CandidateAdvice, ...]
    environment: tuple[VariableAdvice, ...]
    combinations: tuple[CombinationAdvice, ...]
    availability: tuple[Remark, ...]
    routing: tuple[Remark, ...]
    interactions: tuple[Remark, ...]
    pitfalls: tuple[Remark, ...]
    pairs: tuple[NearRow, ...]
    knobs: tuple[NearRow, ...]
    steps: tuple[NearRow, ...]
    recipes: tuple[NearRow, ...]
    claims: Claims
    next: tuple[str, ...]
    findings: tuple[Finding, ...] = Field(default=())

    @property
    def included(self) -> tuple[CandidateAdvice, ...]:
        """Candidates worth measuring, the baseline first."""
        return tuple(one for one in self.candidates if one.candidate.included)
