"""`advise`: from what a person asks to the question that the guide answers. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Finding
from moe_dispatch.core.registry import load_backends_with_findings
from moe_dispatch.decide.advice import Advice
from moe_dispatch.decide.advise import Question, advise
from moe_dispatch.decide.ceiling import Ceiling, ceiling, ceiling_of_record
from moe_dispatch.decide.guide_condition import STAGES, Stage
from moe_dispatch.decide.guide_explain import Explained, backends_of, explain, find_guidance
from moe_dispatch.megatron.version import parse_release
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload, load_workload

UNLISTED_SITE = "unknown"
"""Names a GPU site of which nothing more is known."""


@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """What is asked.

    Fields:
        workload: catalogue name, path of a config.json or of a workload YAML.
        sizes: fields over those of the workload; None is unset.
        site: a declared site, `unknown` for a GPU that is not listed, None for this machine.
        nodes: None takes the fewest that hold the layout.
        exposed_share, record: where the ceiling comes from; at most one of them.
    """

    workload: str
    sizes: Mapping[str, int | str | None] = field(default_factory=dict)
    site: str | None = None
    nodes: int | None = None
    core_version: str = "0.19"
    stage: str | None = None
    memory_tight: bool = False
    exposed_share: float | None = None
    record: str | None = None

    def __post_init__(self) -> None:
        parse_release(self.core_version)
        if self.stage is not None and self.stage not in STAGES:
            raise UsageError(f"unknown stage {self.stage!r}", f"use one of: {', '.join(STAGES)}")
        if self.exposed_share is not None and self.record is not None:
            raise UsageError("--exposed-share and --record both say where the ceiling comes from", "give one of them")
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"--nodes {self.nodes} must be at least 1")
        if self.nodes is not None and self.site is None:
            raise UsageError(f"--nodes {self.nodes} needs --site", "name the site, or leave --nodes out")


def run_advise(request: AdviceRequest) -> tuple[Advice, tuple[Finding, ...]]:
    """The advice, and what was wrong with backends that others registered.

    Raises:
        UsageError: unknown workload, site or stage, contradictory options, or a layout larger than the site.
    """
    question, findings = question_of(request)
    return advise(question), findings


def run_explain(rule: str, request: AdviceRequest | None = None) -> Explained:
    """One rule of the guide; with a request, whether it holds there.

    Raises:
        UsageError: no such rule, or as `run_advise`.
    """
    guidance = find_guidance(rule)
    if request is None:
        return explain(guidance)
    question, _ = question_of(request)
    about = backends_of(guidance) or tuple(question.specs)
    return explain(guidance, [question.situation(name) for name in about if name in question.specs])


def question_of(request: AdviceRequest) -> tuple[Question, tuple[Finding, ...]]:
    """Load everything that the question names.

    Raises:
        UsageError: as `run_advise`.
    """
    workload, site = place(request)
    specs, findings = load_backends_with_findings()
    stage: Stage | None = next((each for each in STAGES if each == request.stage), None)
    question = Question(
        workload=workload,
        site=site,
        specs=specs,
        core_version=request.core_version,
        ceiling=_ceiling(request),
        arguments=_arguments(request),
        place=f"--site {request.site} --nodes {site.nodes}" if request.site else "",
        stage=stage,
        memory_tight=request.memory_tight,
    )
    return question, findings


def place(request: AdviceRequest) -> tuple[Workload, Site]:
    """The workload with all ranks of the site, and the site.

    Raises:
        UsageError: unknown, or the layout does not fit.
    """
    sizes = {name: value for name, value in request.sizes.items() if value is not None}
    workload = load_workload(request.workload, overrides=sizes)
    smallest = workload.layout.world
    site = _site(request, smallest)
    if site.ranks is None:
        return workload, site
    if smallest > site.ranks:
        nodes = -(-smallest // site.gpus_per_node)
        raise UsageError(
            f"the layout takes {smallest} ranks, and {site.name} has {site.ranks}",
            f"name {nodes} nodes, or smaller parallel sizes",
        )
    if request.nodes is not None and not _states_world(request.workload):
        workload = load_workload(request.workload, overrides={**sizes, "world": site.ranks})
    return workload, site


def _site(request: AdviceRequest, ranks: int) -> Site:
    if request.site is None:
        from moe_dispatch.site.probe import probe

        return probe()
    if request.site.lower() == UNLISTED_SITE:
        return Site(name=UNLISTED_SITE, declared=True, device="cuda", nodes=request.nodes or 1)
    try:
        single = declared_site(request.site)
    except UsageError as error:
        fix = f"{error.fix}; --site {UNLISTED_SITE} stands for a GPU that is not listed"
        raise UsageError(error.message, fix) from None
    return declared_site(request.site, request.nodes or -(-ranks // single.gpus_per_node))


def _states_world(workload: str) -> bool:
    """Whether the workload's own file may say how many ranks there are."""
    return Path(workload).suffix.lower() in (".yaml", ".yml")


def _ceiling(request: AdviceRequest) -> Ceiling:
    if request.record is None:
        return ceiling(request.exposed_share)
    from moe_dispatch.evidence.store import RECORD_FILE, load_record

    path = Path(request.record)
    file = path / RECORD_FILE if path.is_dir() else path
    if not file.is_file():
        what = "is a folder without a record" if path.is_dir() else "does not exist"
        raise UsageError(f"--record {path} {what}", "name one run of a store, STORE/RUN, or give --exposed-share")
    found = load_record(file)
    if isinstance(found, Finding):
        raise UsageError(f"--record {path}: {found.message}", "; ".join(found.advice))
    return ceiling_of_record(found)


def _arguments(request: AdviceRequest) -> str:
    """The workload as the other commands take it; those have no option for virtual stages, a workload file has."""
    sizes = {name: value for name, value in request.sizes.items() if value is not None}
    if "vpp" in sizes:
        return "WORKLOAD.yaml"
    return " ".join([request.workload, *(f"--{name.replace('_', '-')} {value}" for name, value in sizes.items())])
