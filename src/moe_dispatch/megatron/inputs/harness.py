"""Command lines of Megatron-Bridge's performance harness, in the order in which its two runners apply what is given.

run_script.py: recipe, Hydra overrides, arguments. run_recipe.py (`--use_recipes`): recipe, arguments, overrides.
NVIDIA-NeMo/Megatron-Bridge@067f987d:scripts/performance (argument_parser.py, run_script.py, run_recipe.py,
utils/overrides.py, utils/utils.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moe_dispatch.megatron.inputs.expand import OPEN
from moe_dispatch.megatron.inputs.overrides import is_override, read_override
from moe_dispatch.megatron.inputs.recipes import fill_from_recipe, find_performance_recipe
from moe_dispatch.megatron.inputs.values import Collected, scalar
from moe_dispatch.megatron.resolution import BACKEND_FIELD, FLEX, TYPE_FIELD, bridge_accepts
from moe_dispatch.megatron.rules.bridge import ENTRY, RECIPE_TYPE, TOKENDROP
from moe_dispatch.megatron.settings import Launcher, Origin

ENTRIES = ("setup_experiment.py", "bootstrap.py", "run_script.py", "run_recipe.py")
_SHORT = {
    "-m": "model_family_name",
    "-mr": "model_recipe_name",
    "-ng": "num_gpus",
    "-gn": "gpus_per_node",
    "-g": "gpu",
    "-c": "compute_dtype",
    "-cv": "config_variant",
    "-tp": "tensor_model_parallel_size",
    "-pp": "pipeline_model_parallel_size",
    "-cp": "context_parallel_size",
    "-vp": "virtual_pipeline_model_parallel_size",
    "-ep": "expert_model_parallel_size",
    "-et": "expert_tensor_parallel_size",
    "-mb": "micro_batch_size",
    "-gb": "global_batch_size",
    "-sl": "seq_length",
    "-ms": "max_steps",
    "-rl": "recompute_num_layers",
    "-ol": "activation_offload_layers",
    "-ce": "custom_env_vars",
    "-E": "env",
    "-d": "dryrun",
}
_FIELDS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "hidden_size",
    "num_layers",
    "num_moe_experts",
)
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
_TOPOLOGY = {8: {"NVLINK_DOMAIN_SIZE": "8", "USE_MNNVL": "0"}, 72: {"NVLINK_DOMAIN_SIZE": "72", "USE_MNNVL": "1"}}
_DOMAINS = {"h100": 8, "b200": 8, "b300": 8, "gb200": 72, "gb300": 72, "vr200": 72, "r100": 72}
_BLACKWELL = ("b200", "b300", "gb200", "gb300", "vr200")


@dataclass
class HarnessRun:
    """What a command line of the harness runs.

    Fields:
        complete: the recipe underneath is known.
        recipe_environment: variables that the recipe, overrides and runner set; the shell's win over them.
    """

    launcher: Launcher
    complete: bool
    gpu: str | None = None
    world: int | None = None
    recipe: str = ""
    exported: dict[str, str] = field(default_factory=dict)
    recipe_environment: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Given:
    """Arguments and overrides of one command line."""

    options: dict[str, str | None] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)


def read_harness(words: Sequence[str], collected: Collected, where: str, bridge_version: str | None) -> HarnessRun:
    """Follow a command line through the runner that it selects.

    Args:
        words: from the script's name on.
        where: file or description, for origins.
    """
    given = _split(words[1:])
    entry = words[0].rsplit("/", 1)[-1]
    as_recipe = entry == "run_recipe.py" or "use_recipes" in given.options
    run = HarnessRun("run_recipe" if as_recipe else "run_script", complete=False, exported=given.exported)
    run.gpu = (given.options.get("gpu") or "").lower() or None
    world = scalar(given.options.get("num_gpus") or "")
    run.world = world if isinstance(world, int) and world > 0 else None
    _recipe(given, collected, run)
    recipe_type = collected.get(TYPE_FIELD)
    base_backend = collected.get(BACKEND_FIELD)
    if as_recipe:
        _arguments(given, collected, run, where, bridge_version)
        _overrides(given, collected, run, where)
        _finalize(collected, run, given)
    else:
        _overrides(given, collected, run, where)
        _arguments(given, collected, run, where, bridge_version)
        _flat_environment(given, collected, run, base_backend)
    if recipe_type is not None:
        collected.set(RECIPE_TYPE, recipe_type, Origin("recipe", run.recipe))
    collected.set(ENTRY, entry, Origin("flag", where))
    return run


def _split(words: Sequence[str]) -> _Given:
    given = _Given()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            if is_override(word):
                given.overrides.append(word)
            continue
        name, equals, inline = word.lstrip("-").partition("=")
        name = _SHORT.get(word.partition("=")[0], name.replace("-", "_"))
        value: str | None = inline if equals else None
        if not equals and at < len(words) and not words[at].startswith("-") and not _is_dotted(words[at]):
            value = words[at]
            at += 1
        if name in ("custom_env_vars", "env") and value:
            pairs = value.split(",") if name == "custom_env_vars" else [value]
            for pair in pairs:
                variable, is_pair, text = pair.partition("=")
                if is_pair:
                    given.exported[variable] = text
        given.options[name] = value
    return given


def _is_dotted(word: str) -> bool:
    """An override behind a switch, as in `--use_recipes model.x=y`; values of options hold no dotted key."""
    return is_override(word) and "." in word.partition("=")[0]


def _recipe(given: _Given, collected: Collected, run: HarnessRun) -> None:
    name, gpu = given.options.get("model_recipe_name") or "", run.gpu or ""
    precision = (given.options.get("compute_dtype") or "bf16").replace("_", "")
    task, variant = given.options.get("task") or "pretrain", given.options.get("config_variant") or ""
    row = find_performance_recipe(
        name, task=task, gpus=run.world, gpu=gpu, precision=precision, variant="" if variant in ("v1",) else variant
    )
    if row is None:
        run.notes.append(
            f"the recipe {name or '?'} for {gpu or '?'} in {precision} is not known: absent fields are open"
        )
        return
    run.recipe, run.complete = row.recipe, True
    run.world = run.world or row.gpus
    fill_from_recipe(row, collected, run.recipe_environment)


def _overrides(given: _Given, collected: Collected, run: HarnessRun, where: str) -> None:
    for word in given.overrides:
        read_override(word, collected, run.recipe_environment, where)


def _arguments(given: _Given, collected: Collected, run: HarnessRun, where: str, bridge_version: str | None) -> None:
    """Arguments that change fields, in the harness's order; the backend comes last."""
    for name in _FIELDS:
        value = given.options.get(name)
        if value is not None:
            collected.set(name, scalar(value), Origin("flag", f"{where} --{name}"))
    _graphs_and_recompute(given, collected, where)
    steps = given.options.get("max_steps")
    if steps is not None:
        collected.set("train_iters", scalar(steps), Origin("flag", f"{where} --max_steps"))
    if _is_true(given.options.get("moe_a2a_overlap", "false")):
        origin = Origin("derived", "--moe_a2a_overlap")
        collected.set("comm_overlap.overlap_moe_expert_parallel_comm", True, origin)
        collected.set("comm_overlap.delay_wgrad_compute", True, origin)
        collected.set("moe_shared_expert_overlap", False, origin)
    if "use_tokendrop" in given.options and run.launcher == "run_script":
        _tokendrop(_is_true(given.options["use_tokendrop"]), collected, where)
    if "packed_sequence" in given.options:
        collected.set("packed_sequence", True, Origin("flag", f"{where} --packed_sequence"))
    _backend(given, collected, run, where, bridge_version)


def _graphs_and_recompute(given: _Given, collected: Collected, where: str) -> None:
    impl, scope = given.options.get("cuda_graph_impl"), given.options.get("cuda_graph_scope")
    if impl is not None:
        collected.set("cuda_graph_impl", impl, Origin("flag", f"{where} --cuda_graph_impl"))
    if impl == "none":
        collected.set("cuda_graph_modules", (), Origin("derived", "--cuda_graph_impl none"))
    elif scope is not None:
        modules = tuple(part for part in scope.replace(",", " ").split())
        collected.set("cuda_graph_modules", modules, Origin("flag", f"{where} --cuda_graph_scope"))
    layers, modules_given = given.options.get("recompute_num_layers"), given.options.get("recompute_modules")
    if layers is not None:
        origin = Origin("flag", f"{where} --recompute_num_layers")
        collected.set("recompute_num_layers", scalar(layers), origin)
        collected.set("recompute_granularity", "full", origin)
        collected.set("recompute_method", "block", origin)
    if modules_given is not None:
        origin = Origin("flag", f"{where} --recompute_modules")
        collected.set("recompute_modules", tuple(modules_given.replace(",", " ").split()), origin)
        collected.set("recompute_granularity", "selective", origin)


def _is_true(text: str | None) -> bool:
    return text is None or text.lower() in ("true", "1", "t", "yes", "y")


def _tokendrop(value: bool, collected: Collected, where: str) -> None:
    origin = Origin("flag", f"{where} --use_tokendrop")
    collected.set(TOKENDROP, value, origin)
    collected.set("moe_router_force_load_balancing", not value, origin)
    collected.set("moe_expert_capacity_factor", 1.0 if value else None, origin)
    collected.set("moe_pad_expert_input_to_capacity", value, origin)


def _backend(given: _Given, collected: Collected, run: HarnessRun, where: str, bridge_version: str | None) -> None:
    """`--moe_flex_dispatcher_backend`: run_script.py sets the type too, run_recipe.py leaves it to its last step."""
    text = given.options.get("moe_flex_dispatcher_backend")
    if text is None or OPEN in text:
        if text is not None:
            collected.open_fields |= {BACKEND_FIELD, TYPE_FIELD}
        return
    origin = Origin("flag", f"{where} --moe_flex_dispatcher_backend {text}")
    backend = None if text == "None" else text
    collected.set(BACKEND_FIELD, backend, origin)
    if run.launcher == "run_recipe":
        return
    if backend is None:
        collected.set(TYPE_FIELD, "alltoall", origin)
        return
    collected.set(TYPE_FIELD, FLEX, origin)
    if run.gpu is None or bridge_accepts(backend, run.gpu, bridge_version) is not False:
        collected.set("moe_shared_expert_overlap", False, Origin("derived", "apply_flex_dispatcher_backend"))


def _finalize(collected: Collected, run: HarnessRun, given: _Given) -> None:
    """run_recipe.py's last step for the environment: HybridEP's topology from the final fields."""
    protected = {word.split("=")[0].removeprefix("env_vars.") for word in given.overrides}
    names = {_DOMAIN, *_TOPOLOGY[8]} - protected
    if collected.get(BACKEND_FIELD) != "hybridep":
        for name in names:
            run.recipe_environment.pop(name, None)
        return
    ep, domain = collected.get("expert_model_parallel_size"), _DOMAINS.get(run.gpu or "")
    if isinstance(ep, int) and domain is not None:
        topology = {_DOMAIN: str(min(ep, domain)), **_TOPOLOGY[domain]}
        run.recipe_environment.update({name: value for name, value in topology.items() if name in names})


def _flat_environment(given: _Given, collected: Collected, run: HarnessRun, base_backend: object) -> None:
    """run_script.py changes variables only for arguments that were given, by the recipe's own backend."""
    protected = {word.split("=")[0].removeprefix("env_vars.") for word in given.overrides}
    if any(name in given.options for name in _FIELDS[:3:2]) or "moe_a2a_overlap" in given.options:
        tp, cp = collected.get(_FIELDS[0]), collected.get(_FIELDS[2])
        parallel = any(isinstance(size, int) and size > 1 for size in (tp, cp))
        overlap = collected.get("comm_overlap.overlap_moe_expert_parallel_comm") is True
        value = "32" if base_backend in ("deepep", "hybridep") else "8"
        if run.gpu in _BLACKWELL:
            value = "32"
        elif parallel and not overlap:
            value = "1"
        if _CONNECTIONS not in protected:
            run.recipe_environment[_CONNECTIONS] = value
    ep, domain = collected.get("expert_model_parallel_size"), _DOMAINS.get(run.gpu or "")
    by_flag = "expert_model_parallel_size" in given.options and _DOMAIN not in protected
    if by_flag and base_backend == "hybridep" and domain and isinstance(ep, int):
        run.recipe_environment[_DOMAIN] = str(min(ep, domain))
