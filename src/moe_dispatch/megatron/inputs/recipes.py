"""A recipe of Megatron-Bridge by name, as it runs unchanged: fields, variables, GPU and ranks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

from moe_dispatch.core.errors import UsageError, WorkloadError
from moe_dispatch.evidence.published import RecipeRow, load_recipes
from moe_dispatch.megatron.inputs.overrides import plain, take
from moe_dispatch.megatron.inputs.values import Collected
from moe_dispatch.megatron.settings import Origin
from moe_dispatch.megatron.settings_fields import Setting
from moe_dispatch.workload.catalogue import find_model

_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
    "seq_length": "seq_length",
}
RECORDED_CORE = "0.20"
"""Megatron-Core that the recorded recipes run on: Bridge 067f987d pins its main branch before release 0.20."""
_NOT_RECORDED = (
    "moe_layer_freq",
    "moe_router_topk",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "moe_router_enable_expert_bias",
    "moe_router_load_balancing_type",
    "moe_shared_expert_intermediate_size",
    "num_moe_experts",
    "num_layers",
    "hidden_size",
    "moe_latent_size",
    "add_bias_linear",
    "attention_dropout",
    "hidden_dropout",
    "moe_shared_expert_overlap",
    "moe_router_dtype",
    "variable_seq_lengths",
    "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity",
    "mtp_num_layers",
    "cuda_graph_modules",
    "recompute_granularity",
    "recompute_modules",
    "recompute_method",
    "recompute_num_layers",
)
"""Fields that a model provider or a helper may set and the record of a recipe may not hold: unknown, not default."""


@cache
def _by_name() -> dict[str, RecipeRow]:
    return {row.recipe.removesuffix("_config"): row for row in load_recipes() if row.recipe}


def find_recipe(name: str) -> RecipeRow | None:
    """A recipe by its function's name, with or without `_config`; None when there is none."""
    return _by_name().get(name.strip().removesuffix("_config"))


def require_recipe(name: str) -> RecipeRow:
    """The same.

    Raises:
        UsageError: no such recipe; names close ones.
    """
    found = find_recipe(name)
    if found is None:
        near = difflib.get_close_matches(name, _by_name(), n=3, cutoff=0.5)
        hint = f"close names: {', '.join(near)}" if near else "see `moe-dispatch evidence` for the recipes"
        raise UsageError(f"no recipe {name!r} is known ({len(_by_name())} are)", hint)
    return found


def find_performance_recipe(
    recipe: str, *, task: str, gpus: int | None, gpu: str, precision: str, variant: str = ""
) -> RecipeRow | None:
    """The recipe that the performance harness picks: name, task, ranks, GPU, precision and variant in its name."""
    stem = f"{recipe}_{task}_"
    fitting = [
        row
        for name, row in _by_name().items()
        if row.series == "performance" and name.startswith(stem) and f"_{gpu}_{precision}" in f"{name}_"
        if (row.variant or "") == variant
    ]
    exact = [row for row in fitting if gpus is None or row.gpus == gpus]
    chosen = exact or fitting
    return chosen[0] if len(chosen) == 1 else None


def fill_from_recipe(row: RecipeRow, collected: Collected, environment: dict[str, str]) -> None:
    """Take what the recipe sets; what its record does not hold becomes unknown."""
    origin = Origin("recipe", row.recipe)
    collected.open_fields.update(_NOT_RECORDED)
    for name, setting in {**_layout(row), **_schedule(row), **_shape(row)}.items():
        collected.set(name, setting, origin)
    for name, value in row.knobs.items():
        if name != "mixed_precision" or "mixed" in str(value).lower().removeprefix("mixedprecisionconfig"):
            take(name, plain(value), collected, environment, origin)
    environment.update(row.environment)


def _layout(row: RecipeRow) -> dict[str, Setting]:
    return {name: value for key, name in _SIZES.items() if (value := getattr(row, key)) is not None}


def _schedule(row: RecipeRow) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    if row.routing == "force_balanced":
        found["moe_router_force_load_balancing"] = True
    if row.cuda_graph:
        found["cuda_graph_impl"] = row.cuda_graph
        if row.cuda_graph_scopes or row.cuda_graph == "none":
            found["cuda_graph_modules"] = tuple(row.cuda_graph_scopes)
    if row.ep_overlap is not None:
        found["comm_overlap.overlap_moe_expert_parallel_comm"] = row.ep_overlap
        found["comm_overlap.delay_wgrad_compute"] = row.knobs.get("delay_wgrad_compute") is True
    if row.recompute in (None, "", "none"):
        found |= {"recompute_granularity": None, "recompute_modules": None}
        found |= {"recompute_method": None, "recompute_num_layers": None}
    elif row.recompute == "full":
        found["recompute_granularity"] = "full"
    else:
        # The record names the modules; whether a granularity makes them count is not in it.
        found["recompute_modules"] = tuple(str(row.recompute).split(","))
    if row.precision is not None and not row.precision.startswith("fp32"):
        found["bf16"] = True
    return found


def _shape(row: RecipeRow) -> Mapping[str, Setting]:
    try:
        shape = find_model(row.model)
    except WorkloadError:
        return {}
    return {
        "num_moe_experts": shape.num_experts,
        "hidden_size": shape.hidden,
        "num_layers": shape.num_layers,
        "moe_router_topk": shape.topk,
        "moe_latent_size": shape.moe_latent_size,
        "moe_shared_expert_intermediate_size": shape.shared_expert_ffn_hidden or None,
    }
