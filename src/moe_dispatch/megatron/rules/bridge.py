"""Checks on what Megatron-Bridge changes or loses."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.resolution import BACKEND_FIELD, FLEX_BACKENDS
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule

TOKENDROP = "harness.use_tokendrop"
RECIPE_TYPE = "harness.recipe_type"
ENTRY = "harness.entry"
"""What the harness's own arguments say, beside the fields that they set."""
_FLAG_TAKES = ("deepep", "hybridep", None)
_OVERLAPS = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
_RUNNERS = ("run_script.py", "run_recipe.py")
_EARLY = ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN")


@rule("bridge-overlap-lost")
def overlap_lost(job: Job) -> Iterator[Hit]:
    """On the model, and not in the section that is read."""
    section = any(name.startswith("comm_overlap") for name in job.config.values)
    for name in _OVERLAPS:
        given = job.config.given(name)
        if section and given is not None and given.value is True and not job.overlap_setting(name):
            yield Hit({"field": name, "origin": given.origin})


@rule("bridge-shared-overlap-switched-off")
def shared_overlap_off(job: Job) -> Iterator[Hit]:
    """run_recipe.py, for backends that it knows."""
    given = job.config.given("moe_shared_expert_overlap")
    rewriting = job.config.launcher == "run_recipe" and job.config.stage == "requested"
    if rewriting and given is not None and given.value is True and job.runs("deepep", "hybridep"):
        yield Hit({"origin": given.origin, "backend": job.running})


@rule("bridge-flag-refuses-backend")
def flag_refuses(job: Job) -> Iterator[Hit]:
    """The harness flag, not an override."""
    given = job.config.given(BACKEND_FIELD)
    harness = job.config.launcher in ("run_script", "run_recipe")
    if harness and given is not None and given.origin.kind == "flag" and given.value not in _FLAG_TAKES:
        yield Hit({"backend": given.value})


@rule("bridge-flex-without-experts")
def flex_without_experts(job: Job) -> Iterator[Hit]:
    """Nothing to dispatch."""
    asked = job.effective.requested if job.effective else None
    if asked in FLEX_BACKENDS and not job.has_experts:
        yield Hit({"backend": asked})


@rule("bridge-forces-padding")
def forces_padding(job: Job) -> Iterator[Hit]:
    """Eager HybridEP in releases after 0.6."""
    older = job.config.bridge_version is not None and job.config.bridge_version.startswith("0.6")
    if job.runs("hybridep") and job.graph_impl == "none" and not older:
        yield Hit()


@rule("tokendrop-flips-routing")
def tokendrop_flips(job: Job) -> Iterator[Hit]:
    """Given either way, it switches forced balancing."""
    given = job.config.given(TOKENDROP)
    if given is not None and isinstance(given.value, bool):
        yield Hit({"value": str(given.value).lower(), "forced": str(not given.value).lower()})


@rule("tokendrop-needs-alltoall-recipe")
def tokendrop_alltoall(job: Job) -> Iterator[Hit]:
    """The recipe's own type counts."""
    given, recipe = job.config.given(TOKENDROP), job.config.given(RECIPE_TYPE)
    if given is not None and recipe is not None and recipe.value not in ("alltoall", "alltoall_seq"):
        yield Hit({"type": recipe.value})


@rule("bridge-attribute-without-effect")
def attribute_without_effect(job: Job) -> Iterator[Hit]:
    """No field."""
    given = job.config.given("moe_a2a_overlap")
    if given is not None and given.value is not None:
        yield Hit({"origin": given.origin})


@rule("bridge-environment-too-late")
def environment_too_late(job: Job) -> Iterator[Hit]:
    """A runner without bootstrap.py, and a recipe that relies on variables."""
    entry = job.config.given(ENTRY)
    origins = job.config.env_origins
    late = [name for name in _EARLY if name in origins and origins[name].kind in ("recipe", "override", "derived")]
    if entry is not None and entry.value in _RUNNERS and late:
        yield Hit({"entry": entry.value, "names": ", ".join(late)})


@rule("bridge-drops-warnings")
def drops_warnings(job: Job) -> Iterator[Hit]:
    """Only where there is a warning to drop."""
    given = job.config.given("logger.filter_warnings")
    shown = given is not None and given.value is False
    if not shown and job.runs("deepep", "hybridep") and job.get("moe_router_dtype") != "fp32":
        yield Hit()
