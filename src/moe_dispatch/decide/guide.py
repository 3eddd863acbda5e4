"""The selection guide: which dispatchers to measure for a workload on a site, in which order, and why.

A prior, never a verdict: it orders and excludes by the dated rules of `guide_rules.yaml`; what is measured overrules
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.choice import Choice, KnobValue
from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide.guide_condition import GateStatus, Situation, Stage
from moe_dispatch.decide.guide_rules import BASELINE, Rule, load_rules
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload


class Reason(BaseModel):
    """Why a candidate stands where it stands; `rule` is the id of the rule that says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    text: str
    sources: tuple[str, ...] = ()


class Candidate(BaseModel):
    """One backend as the guide sees it.

    Fields:
        choice: the backend with its default knobs.
        position: 0 is the baseline; excluded backends come last.
        included: whether it is worth measuring here.
        reasons: rules that hold for it; for an excluded one only those that exclude it.
        gate: `unsupported` when it does not serve this device or payload; `unavailable` when its gate failed.
        gate_reason, fix: of a failed gate.
        sweep: knob -> values worth trying, besides its default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    choice: Choice
    position: int
    included: bool
    reasons: tuple[Reason, ...]
    gate: GateStatus
    gate_reason: str = ""
    fix: str = ""
    sweep: dict[str, tuple[KnobValue, ...]] = Field(default_factory=dict)


def candidates(
    workload: Workload,
    site: Site,
    specs: Mapping[str, BackendSpec],
    gates: Mapping[str, GateResult] | None = None,
    *,
    ranks_per_domain: int | None = None,
    rules: Sequence[Rule] | None = None,
    stage: Stage | None = None,
    memory_tight: bool = False,
    core_version: str | None = None,
) -> list[Candidate]:
    """Every backend: the baseline first, then what is worth measuring in the guide's order, then the rest.

    Args:
        specs: backends by name.
        gates: outcome of each backend's gate; one that is missing counts as not gated (a declared site).
        ranks_per_domain: consecutive ranks of one fast domain, when the caller knows better than the site.
        rules: instead of the shipped ones.
        stage, memory_tight, core_version: what is known of the job; see `Situation`.

    Raises:
        UsageError: the baseline is not among `specs`.
    """
    if BASELINE not in specs:
        raise UsageError(f"the baseline {BASELINE!r} is not among the backends: {', '.join(specs)}")
    rules = load_rules() if rules is None else rules
    domains = domains_of(workload, site, ranks_per_domain)
    found = []
    for name, spec in specs.items():
        at = Situation(
            workload=workload,
            site=site,
            domains=domains,
            spec=spec,
            gate=(gates or {}).get(name),
            stage=stage,
            memory_tight=memory_tight,
            core_version=core_version,
        )
        holding = [rule for rule in rules if rule.when.holds(at)]
        excluded = any(rule.effect == "exclude" and rule.speaks_of(name) for rule in holding)
        found.append((_sort_key(spec, holding, excluded), _candidate(at, holding, excluded)))
    found.sort(key=lambda entry: entry[0])
    return [candidate.model_copy(update={"position": index}) for index, (_, candidate) in enumerate(found)]


def domains_of(workload: Workload, site: Site, ranks_per_domain: int | None = None) -> int | None:
    """Fast domains that one exchange group (EP x expert TP, consecutive ranks) spans; None when unknown.

    A domain is what the caller says, else the NVLink domain; on CPUs one node is one domain.
    """
    group = workload.layout.ep * workload.layout.expert_tp
    if ranks_per_domain is not None:
        return -(-group // ranks_per_domain)
    if site.device == "cpu":
        return 1 if site.nodes == 1 else min(site.nodes, group)
    return site.domains(group)


def _sort_key(spec: BackendSpec, holding: Sequence[Rule], excluded: bool) -> tuple[object, ...]:
    places = tuple(
        rule.order.index(spec.name) if spec.name in rule.order else len(rule.order)
        for rule in holding
        if rule.effect == "order"
    )
    return (spec.name != BASELINE, excluded, places, spec.simplicity, spec.name)


def _candidate(at: Situation, holding: Sequence[Rule], excluded: bool) -> Candidate:
    spec = at.spec
    spoken = [rule for rule in holding if rule.speaks_of(spec.name) and excluded == (rule.effect == "exclude")]
    reasons = [Reason(rule=rule.id, text=at.fill(rule.text), sources=rule.sources) for rule in spoken]
    if spec.name == BASELINE:
        reasons.insert(0, Reason(rule="baseline", text="correctness reference and fallback of every comparison"))
    dropped = {knob for rule in spoken for knob in rule.drop_sweep}
    gate = at.gate
    return Candidate(
        choice=Choice(dispatcher=spec.name),
        position=0,
        included=not excluded,
        reasons=tuple(reasons),
        gate=at.gate_status,
        gate_reason=gate.reason if gate is not None and not gate.available else "",
        fix=gate.fix if gate is not None and not gate.available else "",
        sweep={name: knob.sweep for name, knob in spec.knobs.items() if knob.sweep and name not in dropped},
    )
