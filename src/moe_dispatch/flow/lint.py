"""The `lint` command: what was given, read and judged."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.inputs.read import Declared, read_config
from moe_dispatch.megatron.lint import LintResult, lint
from moe_dispatch.megatron.rules.catalogue import load_lint_rules
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.settings import MegatronConfig, UnknownSetting
from moe_dispatch.site.hardware import declared_site, load_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.site.stack import DISTRIBUTIONS, stack_fingerprint
from moe_dispatch.site.topology import load_topology_rules
from moe_dispatch.workload.layout import ParallelLayout

HERE = "here"


@dataclass(frozen=True, kw_only=True)
class LintRequest:
    """The command's input as it was given; see its options."""

    words: tuple[str, ...]
    site: str | None = None
    nodes: int | None = None
    core_version: str | None = None
    bridge_version: str | None = None
    variables: tuple[str, ...] = ()
    variables_file: str | None = None
    settings: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    world: int | None = None


def run_lint(request: LintRequest) -> LintResult:
    """Read and judge.

    Raises:
        UsageError: something given cannot be meant.
    """
    if request.nodes is not None and request.site in (None, HERE):
        raise UsageError(f"--nodes {request.nodes} needs a declared --site", "name the hardware, such as --site h100")
    if request.world is not None and request.world < 1:
        raise UsageError(f"--world {request.world} must be at least 1")
    packages = _pairs(request.packages, "--package")
    unknown = sorted(set(packages) - {*DISTRIBUTIONS, "nvshmem", "driver"})
    if unknown:
        raise UsageError(f"--package {unknown[0]} is not known; known: {', '.join(DISTRIBUTIONS)}")
    variables = {**_variables_file(request.variables_file), **_pairs(request.variables, "--env")}
    here = stack_fingerprint() if request.site == HERE else {}
    declared = Declared(
        core_version=request.core_version or here.get("megatron_core"),
        bridge_version=request.bridge_version or here.get("megatron_bridge"),
        world_size=request.world,
        environment=variables,
        settings=request.settings,
    )
    config = read_config(request.words, declared)
    site = _site(request, config)
    if request.nodes is not None and config.world_size is None and site is not None:
        config = replace(config, world_size=site.ranks)
    return lint(config, site, {**here, **packages})


def _site(request: LintRequest, config: MegatronConfig) -> Site | None:
    """As declared or probed; else what the launcher's own arguments or the recipe name."""
    if request.site == HERE:
        from moe_dispatch.site.probe import probe

        return probe()
    if request.site is not None:
        return declared_site(request.site, request.nodes or _nodes(request.site, config))
    entry = load_hardware().get(config.gpu or "")
    if entry is None:
        return None
    return declared_site(entry.name, _nodes(entry.name, config))


def _nodes(name: str, config: MegatronConfig) -> int:
    """Nodes that the job's ranks fill; when those are not known, as many as its parallel layout needs."""
    per_node = declared_site(name).gpus_per_node
    ranks = config.world_size or _smallest_world(config)
    return -(-ranks // per_node) if per_node else 1


def _smallest_world(config: MegatronConfig) -> int:
    job = Job(config=config)
    try:
        sizes = {"tp": job.tp, "pp": job.pp, "cp": job.cp, "ep": job.ep, "etp": job.expert_tp}
    except UnknownSetting:
        return 1
    return ParallelLayout.smallest_world(**sizes)


def _pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text!r} is not NAME=VALUE")
        found[name] = value
    return found


def _variables_file(path: str | None) -> dict[str, str]:
    """Lines `K=V` or `export K=V`; empty lines and comments are skipped.

    Raises:
        UsageError: the file cannot be read, or a line is none of these.
    """
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"--env-file {path} cannot be read: {error}") from error
    wanted = [line.strip().removeprefix("export ") for line in lines]
    pairs = _pairs((line for line in wanted if line and not line.startswith("#")), "--env-file line")
    return {name: value.strip().strip("\"'") for name, value in pairs.items()}


def explain_rule(identifier: str) -> dict[str, str]:
    """What a rule is about, in the order in which a person reads it.

    Raises:
        UsageError: no such rule; names close ones.
    """
    rule = load_lint_rules().get(identifier)
    if rule is not None:
        return {
            "rule": rule.id,
            "severity": rule.severity.value,
            "speaks when": rule.summary,
            "holds for": rule.versions,
            "why": rule.why,
            "fix": "; ".join(rule.fix),
            "source": rule.source,
        }
    topology = load_topology_rules().get(identifier)
    if topology is not None:
        return {
            "rule": topology.id,
            "severity": topology.severity.value,
            "speaks when": topology.summary,
            "holds for": topology.holds_for,
            "why": topology.why,
            "fix": "; ".join(topology.advice),
            "source": topology.source,
        }
    known = [*load_lint_rules(), *load_topology_rules()]
    near = difflib.get_close_matches(identifier, known, n=3, cutoff=0.4)
    raise UsageError(
        f"no rule {identifier!r}", f"did you mean {', '.join(near)}?" if near else "see docs/reference/rules.md"
    )
