"""The site's topology rules over a configuration: what lint knows of the job, in the form that those rules take."""

from __future__ import annotations

from moe_dispatch.core.finding import Finding
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.settings import UnknownSetting
from moe_dispatch.site.model import Site
from moe_dispatch.site.topology import TopologyInput, check_topology
from moe_dispatch.site.topology_input import Framework

_ANYWHERE = Site(name="unknown", declared=True, device="cuda")
"""Without a site, the rules that need none still hold (group sizes, values of variables)."""


def topology_findings(job: Job) -> tuple[list[Finding], str]:
    """Findings, and what was missing when the rules could not be asked.

    They are asked about the dispatcher that was requested, also where Bridge would replace it: that is why it does.
    """
    try:
        return check_topology(_input(job)), ""
    except UnknownSetting as missing:
        return [], missing.name


def _input(job: Job) -> TopologyInput:
    asked = job.effective.requested if job.effective and not job.effective.as_requested else None
    stops = job.effective is not None and job.effective.effective is None
    replaced = any(each.id in ("requested-not-effective", "bridge-refuses-backend") for each in _resolved(job))
    backend = asked if asked is not None and (stops or replaced) else job.running
    frameworks: dict[str, Framework] = {"megatron-lm": "megatron-lm", "megatron-bridge": "megatron-bridge"}
    return TopologyInput(
        backend=backend,
        site=job.site or _ANYWHERE,
        ep=job.ep,
        expert_tp=job.expert_tp,
        tp=job.tp,
        pp=job.pp,
        cp=job.cp,
        world=job.config.world_size,
        tokens_per_rank=_tokens(job),
        micro_batch=_micro_batch(job),
        environment=job.config.env,
        versions=job.packages,
        framework=frameworks.get(job.config.framework),
    )


def _resolved(job: Job) -> tuple[Finding, ...]:
    return job.effective.findings if job.effective else ()


def _tokens(job: Job) -> int | None:
    try:
        return job.tokens
    except UnknownSetting:
        return None


def _micro_batch(job: Job) -> int | None:
    try:
        return None if job.get("micro_batch_size") is None else job.size("micro_batch_size")
    except UnknownSetting:
        return None
