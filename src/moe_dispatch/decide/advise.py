"""From a workload and a site to advice: a pure function of the guide, the catalogues and published evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.errors import MoeDispatchError
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.decide.advice import (
    Advice,
    CandidateAdvice,
    CombinationAdvice,
    DefaultSaid,
    KnobAdvice,
    Remark,
    Step,
    VariableAdvice,
)
from moe_dispatch.decide.advice_evidence import (
    Claims,
    claims_of,
    nearest_knobs,
    nearest_pairs,
    nearest_steps,
    recipes_in_force,
)
from moe_dispatch.decide.advice_next import next_measurements
from moe_dispatch.decide.ceiling import Ceiling
from moe_dispatch.decide.guide import Candidate, candidates, domains_of
from moe_dispatch.decide.guide_condition import Situation, Stage
from moe_dispatch.decide.guide_practice import (
    KnobGuide,
    Practice,
    PracticeTopic,
    Variable,
    load_combinations,
    load_knobs,
    load_practice,
    load_variables,
)
from moe_dispatch.decide.guide_rules import BASELINE
from moe_dispatch.decide.prior import judge
from moe_dispatch.decide.prior_words import confidence
from moe_dispatch.evidence.closest import query_of
from moe_dispatch.evidence.published import load_knob_pairs, load_pairs, load_recipes, load_training
from moe_dispatch.megatron.configuration import Emitted, emit
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site
from moe_dispatch.site.topology import TopologyInput, check_topology
from moe_dispatch.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Question:
    """What advice is asked for.

    Fields:
        arguments, place: the workload and the site as a command of this package takes them, for the commands in the
            advice.
        gates: outcomes of gates that ran; empty for a declared site.
    """

    workload: Workload
    site: Site
    specs: Mapping[str, BackendSpec]
    core_version: str
    ceiling: Ceiling
    arguments: str = ""
    place: str = ""
    stage: Stage | None = None
    memory_tight: bool = False
    gates: Mapping[str, GateResult] = field(default_factory=dict)

    def situation(self, backend: str) -> Situation:
        """What rules look at for one backend."""
        return Situation(
            workload=self.workload,
            site=self.site,
            domains=domains_of(self.workload, self.site),
            spec=self.specs[backend],
            gate=self.gates.get(backend),
            stage=self.stage,
            memory_tight=self.memory_tight,
            core_version=self.core_version,
        )


def advise(question: Question) -> Advice:
    """Answer the question from the guide and published evidence; runs nothing."""
    workload, site = question.workload, question.site
    found = candidates(
        workload,
        site,
        question.specs,
        question.gates,
        stage=question.stage,
        memory_tight=question.memory_tight,
        core_version=question.core_version,
    )
    advised = tuple(_candidate(question, one) for one in found)
    query, pairs, steps, recipes = query_of(workload, site), load_pairs(), load_training(), load_recipes()
    claims = claims_of(query, pairs, steps, recipes) if site.gpu else Claims()
    at = question.situation(BASELINE)
    packages = {name for name, spec in question.specs.items() if spec.kind == "package"}
    return Advice(
        workload=workload.contract_fields(),
        site=site.name,
        site_summary=_site_summary(site),
        stage=question.stage,
        core_version=question.core_version,
        ceiling=question.ceiling,
        confidence=confidence(workload, site, judge(pairs, question.specs)),
        path=_path(question, at),
        candidates=advised,
        environment=tuple(_variable(one, at) for one in _variables(at) if not one.backends),
        combinations=_combinations(question, [one.name for one in advised if one.candidate.included]),
        availability=_remarks("availability", at),
        routing=_remarks("routing", at),
        interactions=_remarks("interaction", at),
        pitfalls=_remarks("pitfall", at),
        pairs=nearest_pairs(query, pairs),
        knobs=nearest_knobs(query, load_knob_pairs(), [one.name for one in advised if one.candidate.included]),
        steps=nearest_steps(query, steps),
        recipes=tuple(near for near, _ in recipes_in_force(query, recipes)),
        claims=claims,
        next=next_measurements(question.ceiling, advised, claims, at, packages),
        findings=_job_findings(advised),
    )


def _candidate(question: Question, candidate: Candidate) -> CandidateAdvice:
    name = candidate.choice.dispatcher
    if not candidate.included:
        return CandidateAdvice(candidate=candidate)
    at = question.situation(name)
    environment = tuple(_variable(one, at) for one in _variables(at) if name in one.backends)
    configuration, refused = _configuration(question, candidate)
    return CandidateAdvice(
        candidate=candidate,
        knobs=_knobs(candidate, at),
        environment=environment,
        findings=_topology(question, name, environment),
        configuration=configuration,
        not_configured=refused,
    )


def _configuration(question: Question, candidate: Candidate) -> tuple[Emitted | None, str]:
    spec = question.specs[candidate.choice.dispatcher]
    try:
        emitted = emit(candidate.choice, spec, question.workload, question.site, question.core_version)
    except MoeDispatchError as error:
        return None, error.message
    if emitted.emitted is None:
        return None, "; ".join(emitted.notes)
    return emitted, ""


def _topology(question: Question, backend: str, environment: Iterable[VariableAdvice]) -> tuple[Finding, ...]:
    """What the topology rules say of this backend's group; between hosts of a CPU site nothing is known."""
    workload, layout = question.workload, question.workload.layout
    return tuple(
        check_topology(
            TopologyInput(
                backend=backend,
                site=question.site,
                ep=layout.ep,
                expert_tp=layout.expert_tp,
                tp=layout.tp,
                pp=layout.pp,
                cp=layout.cp,
                world=layout.world,
                tokens_per_rank=workload.tokens_per_rank,
                micro_batch=workload.micro_batch,
                environment={one.name: one.value for one in environment if one.how == "set"},
            )
        )
    )


def _knobs(candidate: Candidate, at: Situation) -> tuple[KnobAdvice, ...]:
    guides = {guide.knob: guide for guide in load_knobs() if guide.backend == at.spec.name and guide.when.holds(at)}
    found = []
    for name, knob in at.spec.knobs.items():
        guide, sweep = guides.get(name), candidate.sweep.get(name, ())
        if guide is None and not sweep:
            continue
        found.append(
            KnobAdvice(
                knob=name,
                megatron=guide is not None,
                here=_default_here(guide, at) if guide is not None else knob.default,
                defaults=_defaults(guide) if guide is not None else (),
                sweep=sweep,
                text=guide.text if guide is not None else knob.help,
                sources=guide.sources if guide is not None else (),
            )
        )
    return tuple(found)


def _default_here(guide: KnobGuide, at: Situation) -> int | float | str | bool | None:
    return next((one.value for one in guide.defaults if one.who == "library" and one.when.holds(at)), None)


def _defaults(guide: KnobGuide) -> tuple[DefaultSaid, ...]:
    return tuple(DefaultSaid(value=one.value, who=one.who, label=one.label) for one in guide.defaults)


def _variables(at: Situation) -> list[Variable]:
    """Variables that hold here; one whose value is not known here is left alone, as a wrong one is worse than none."""
    known = [one for one in load_variables() if at.inside is not None or "{inside}" not in one.value]
    return [one for one in known if one.when.holds(at)]


def _variable(one: Variable, at: Situation) -> VariableAdvice:
    return VariableAdvice(
        name=one.name, value=at.fill(one.value), how=one.how, text=at.fill(one.text), sources=one.sources
    )


def _combinations(question: Question, included: Sequence[str]) -> tuple[CombinationAdvice, ...]:
    found = []
    for one in load_combinations():
        about = [name for name in included if not one.backends or name in one.backends]
        holding = [name for name in about if one.when.holds(question.situation(name))]
        if holding:
            found.append(
                CombinationAdvice(
                    rule=one.id,
                    feature=one.feature,
                    verdict=one.verdict,
                    dispatchers=() if len(holding) == len(included) else tuple(holding),
                    text=question.situation(holding[0]).fill(one.text),
                    sources=one.sources,
                )
            )
    return tuple(found)


def _path(question: Question, at: Situation) -> tuple[Step, ...]:
    return tuple(
        Step(
            rule=one.id,
            text=at.fill(one.text),
            guard=one.guard,
            sources=one.sources,
            stage=one.stage,
            now=one.stage == question.stage,
            commands=tuple(_command(each, question) for each in one.commands),
        )
        for one in _holding("path", at)
        if one.stage is not None
    )


def _command(template: str, question: Question) -> str:
    """A command of this package; what measures the layer does so in the precision that it can carry."""
    layer = question.arguments.replace(" --precision fp8", "")
    return " ".join(template.format(args=question.arguments, layer=layer, place=question.place).split())


def _remarks(topic: PracticeTopic, at: Situation) -> tuple[Remark, ...]:
    return tuple(
        Remark(rule=one.id, text=at.fill(one.text), guard=one.guard, sources=one.sources) for one in _holding(topic, at)
    )


def _holding(topic: PracticeTopic, at: Situation) -> list[Practice]:
    return [one for one in load_practice() if one.topic == topic and one.when.holds(at)]


def _site_summary(site: Site) -> str:
    known = site.device == "cpu" or site.gpus_per_node
    return site.summary if known else f"{site.name} (declared): an accelerator that the catalogue does not know"


def _job_findings(advised: Sequence[CandidateAdvice]) -> tuple[Finding, ...]:
    """What stands against the job whatever the dispatcher: errors that hold for the baseline too."""
    baseline = next(one for one in advised if one.name == BASELINE)
    return tuple(one for one in baseline.findings if one.severity is Severity.ERROR)
