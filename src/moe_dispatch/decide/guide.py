"""The guide: which dispatchers are worth measuring for a workload on a site, in which order and why.

It proposes and never decides: rules (`guide_rules.yaml`) order, exclude and annotate; what cannot run is shown with its
reason instead of being left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.choice import Choice, KnobValue
from moe_dispatch.decide.guide_rules import Facts, GuideWorkload, Rule, facts_of, load_rules
from moe_dispatch.site.gate import GateResult
from moe_dispatch.site.model import Site

BASELINE = "alltoall"


class Reason(BaseModel):
    """Why a candidate is where it is.

    Fields:
        rule: id of a guide rule, or `gate`, `platform`, `no-adapter`, `experimental`, `not-gated`.
        text: one sentence.
        sources, refuted_by: of the rule.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    text: str
    sources: tuple[str, ...] = ()
    refuted_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text} [{self.rule}]"


class Candidate(BaseModel):
    """One dispatcher as the guide sees it.

    Fields:
        choice: dispatcher with default knobs.
        position: 0 is the baseline; those that are not included come last.
        included: whether it should be measured.
        reasons: what speaks for, against, or about it; those that exclude it first.
        available: outcome of its gate; None where it was not gated (a declared site).
        gate: `available`, `not gated`, or the gate's reason class.
        sweep: values to try for each open knob.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    choice: Choice
    position: int
    included: bool
    reasons: tuple[Reason, ...]
    available: bool | None
    gate: str
    sweep: dict[str, tuple[KnobValue, ...]] = Field(default_factory=dict)


def candidates(
    workload: GuideWorkload,
    site: Site,
    specs: Mapping[str, BackendSpec],
    gates: Mapping[str, GateResult],
) -> list[Candidate]:
    """Every known backend as a candidate: the baseline, then what to measure in order, then what is out and why.

    Args:
        gates: results by backend on this machine; ignored for a declared site, whose packages cannot be seen from here.
    """
    facts = facts_of(workload, site)
    rules = [rule for rule in load_rules() if rule.when.holds(facts)]
    ordered = _order(specs, rules)
    seen = {} if site.declared else gates
    excluded = {name: _exclusions(specs[name], site, facts, rules, seen.get(name)) for name in ordered}
    inside = [name for name in ordered if not excluded[name]]
    outside = [name for name in ordered if excluded[name]]
    found = []
    for position, name in enumerate(inside + outside):
        spec, gate = specs[name], seen.get(name)
        notes = [_reason(rule) for rule in rules if rule.effect != "exclude" and _concerns(rule, name)]
        if gate is None:
            text = f"Not gated here: run `moe-dispatch doctor` on the site to see whether {name} works there."
            notes.append(Reason(rule="not-gated", text=text))
        found.append(
            Candidate(
                choice=Choice(dispatcher=name),
                position=position,
                included=not excluded[name],
                reasons=(*excluded[name], *notes),
                available=gate.available if gate else None,
                gate="not gated" if gate is None else "available" if gate.available else gate.reason_class or "other",
                sweep={knob: entry.sweep for knob, entry in spec.knobs.items() if entry.sweep},
            )
        )
    return found


def _order(specs: Mapping[str, BackendSpec], rules: list[Rule]) -> list[str]:
    names = sorted(specs, key=lambda name: (specs[name].simplicity, name))
    for rule in rules:
        if rule.effect == "order":
            front = [name for name in rule.backends if name in specs]
            names = front + [name for name in names if name not in front]
    return [name for name in names if name == BASELINE] + [name for name in names if name != BASELINE]


def _exclusions(
    spec: BackendSpec, site: Site, facts: Facts, rules: list[Rule], gate: GateResult | None
) -> list[Reason]:
    """Why a backend is not measured; nothing takes the baseline out, except that it cannot run."""
    out: list[Reason] = []
    if facts.device not in spec.capabilities.devices or (spec.platforms and facts.device not in spec.platforms):
        devices = ", ".join(spec.capabilities.devices)
        text = f"Unsupported here: {spec.title} moves tokens on {devices}, this site has {facts.device}."
        out.append(Reason(rule="platform", text=text, sources=(spec.source,)))
    if spec.name != BASELINE:
        out += [_reason(rule) for rule in rules if rule.effect == "exclude" and spec.name in rule.backends]
    if gate is not None and not gate.available:
        out.append(Reason(rule="gate", text=f"Unavailable: {gate.reason}." if gate.reason else "Unavailable."))
    if spec.target is None and not site.declared:
        text = "This release cannot measure it; its configuration can be emitted and compared in training."
        out.append(Reason(rule="no-adapter", text=text))
    if spec.experimental:
        out.append(Reason(rule="experimental", text="Experimental: measured when asked for by name."))
    return out


def _concerns(rule: Rule, name: str) -> bool:
    return name in rule.backends or (rule.effect == "note" and not rule.backends)


def _reason(rule: Rule) -> Reason:
    return Reason(rule=rule.id, text=rule.text, sources=rule.sources, refuted_by=rule.refuted_by)
