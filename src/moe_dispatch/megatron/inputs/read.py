"""A configuration from whatever launches the job: a file, or words as they would stand on a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.inputs.arguments import read_arguments
from moe_dispatch.megatron.inputs.expand import OPEN
from moe_dispatch.megatron.inputs.harness import ENTRIES, HarnessRun, read_harness
from moe_dispatch.megatron.inputs.overrides import SECTIONS, canonical, is_override, read_override, read_tree
from moe_dispatch.megatron.inputs.recipes import RECORDED_CORE, fill_from_recipe, find_recipe, require_recipe
from moe_dispatch.megatron.inputs.shell import Command, Script, read_script, words_of
from moe_dispatch.megatron.inputs.values import Collected, setting
from moe_dispatch.megatron.settings import Framework, Launcher, MegatronConfig, Origin
from moe_dispatch.megatron.version import parse_release

MOST_BYTES = 4 * 2**20
"""A launcher or configuration is far smaller; a larger file is something else."""
_YAML = (".yaml", ".yml", ".json")
_SHAPE = ("num_moe_experts", "num_layers", "hidden_size", "moe_router_topk", "moe_layer_freq", "add_bias_linear")
_TELLING = ("--num-experts", "--moe-router-topk", "--moe-token-dispatcher-type", "--expert-model-parallel-size")
_RANKS = {"nproc_per_node": "per_node", "nnodes": "nodes", "ntasks_per_node": "per_node", "nodes": "nodes"}
_RECIPE_NAME = re.compile(r"[a-z][a-z0-9_]*_config|[a-z][a-z0-9_]*_\d+gpu_[a-z0-9_]+")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the user says beside the input.

    Fields:
        environment: variables exported in the shell that starts the job.
        settings: `field=value`, stronger than everything that was read.
    """

    core_version: str | None = None
    bridge_version: str | None = None
    world_size: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[str] = ()


@dataclass
class _Draft:
    collected: Collected = field(default_factory=Collected)
    environment: dict[str, str] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    recipe_environment: dict[str, str] = field(default_factory=dict)
    framework: Framework = "unknown"
    launcher: Launcher = "unknown"
    complete: bool = True
    world: int | None = None
    gpu: str | None = None
    recipe: str = ""
    core_version: str | None = None
    notes: list[str] = field(default_factory=list)


def read_config(words: Sequence[str], declared: Declared | None = None) -> MegatronConfig:
    """Read a configuration.

    Args:
        words: one file (shell script, argument list, YAML), a recipe's name and overrides, or a command line.

    Raises:
        UsageError: nothing is given, the file cannot be read, or it is none of these.
    """
    declared = declared or Declared()
    for version in (declared.core_version, declared.bridge_version):
        if version is not None:
            parse_release(version)
    if not words:
        raise UsageError("nothing to lint", "give a file, a recipe's name, or arguments after `--`")
    draft = _Draft()
    first = Path(words[0])
    if _is_file(first) and first.suffix != ".py":
        _file(first, draft, declared)
        _words(list(words[1:]), draft, declared, "command line", bare=True)
    else:
        _words(list(words), draft, declared, "command line", bare=False)
    return _finish(draft, declared)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(
                f"{path} is larger than {MOST_BYTES // 2**20} MiB", "give the launcher or the configuration"
            )
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _file(path: Path, draft: _Draft, declared: Declared) -> None:
    text = _text(path)
    if path.suffix in _YAML or _looks_like_yaml(text):
        _yaml(path, text, draft)
        return
    stripped = text.lstrip()
    if stripped.startswith("-") or is_override(stripped.split(None, 1)[0] if stripped else ""):
        words = list(words_of(text))
        if not any(word.endswith(".py") for word in words) and stripped.startswith(("-", "model.")):
            _words(words, draft, declared, path.name, bare=False)
            return
    _script(path.name, read_script(text, declared.environment), draft, declared)


def _looks_like_yaml(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return re.match(r"[A-Za-z_]\w*:(\s|$)", first) is not None


def _yaml(path: Path, text: str, draft: _Draft) -> None:
    try:
        tree = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is no valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(tree, Mapping):
        raise UsageError(f"{path} holds no mapping of fields", "give a ConfigContainer or fields as `name: value`")
    container = any(isinstance(tree.get(name), Mapping) for name in SECTIONS if name != "env_vars")
    draft.framework = "megatron-bridge" if container else "unknown"
    environment: dict[str, str] = {}
    try:
        read_tree(tree, draft.collected, environment, path.name)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply") from error
    _recipe_variables(draft, environment, Origin("file", path.name))
    if not set(draft.collected.values) & set(_SHAPE[:3]):
        draft.collected.open_fields |= set(_SHAPE) - set(draft.collected.values)


class _Loader(yaml.SafeLoader):
    """Reads tags of Python objects, which dumps of configurations hold, as plain text."""


def _plain_tag(loader: yaml.SafeLoader, _tag: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node)
    return loader.construct_mapping(node) if isinstance(node, yaml.MappingNode) else None


_Loader.add_multi_constructor("!", _plain_tag)
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", _plain_tag)


def _script(name: str, script: Script, draft: _Draft, declared: Declared) -> None:
    command = _training_command(script) or _arguments_in_variables(name, script, draft)
    if command is None:
        raise UsageError(
            f"{name}: no training command is in it",
            "give a script that starts a .py, an argument list, a YAML, or a recipe's name",
        )
    for variable, value in command.environment.items():
        if OPEN not in value:
            draft.environment[variable] = value
            draft.origins[variable] = Origin("script", f"{name}:{script.lines.get(variable, command.line)}")
    unset = [each for each in script.missing if each not in command.environment]
    _ranks(script.sbatch, draft)
    _words(list(command.words), draft, declared, f"{name}:{command.line}", bare=False)
    if unset and not draft.complete:
        draft.notes.append(f"{name}: not set in the script: {', '.join(unset[:8])}; give them with --env NAME=VALUE")


def _training_command(script: Script) -> Command | None:
    """The last command that starts a Python program with settings of a dispatcher, else the last that starts one."""
    nested = [inner for each in script.commands for inner in _nested(each)]
    programs = [each for each in (*script.commands, *nested) if any(word.endswith(".py") for word in each.words)]
    telling = [each for each in programs if any("moe" in word or word.startswith("model.") for word in each.words)]
    chosen = telling or programs
    return chosen[-1] if chosen else None


def _nested(command: Command) -> list[Command]:
    """Commands in a word that is a script itself, as in `bash -c "..."`."""
    inner = [word for word in command.words if ".py" in word and any(char.isspace() for char in word)]
    return [
        Command(each.words, {**command.environment, **each.environment}, command.line)
        for word in inner
        for each in read_script(word, command.environment).commands
    ]


def _arguments_in_variables(name: str, script: Script, draft: _Draft) -> Command | None:
    """A script that only prepares arguments for another one: what its variables hold."""
    lists = {**{key: text.split() for key, text in script.variables.strings.items()}, **script.variables.arrays}
    telling = {key: words for key, words in lists.items() if any(word in _TELLING for word in words)}
    if not telling:
        return None
    draft.notes.append(f"{name} starts no training itself: read are its variables {', '.join(telling)}")
    words = [word for each in telling.values() for word in each]
    return Command(("pretrain_gpt.py", *words), script.exported, 0)


def _words(words: list[str], draft: _Draft, declared: Declared, where: str, *, bare: bool) -> None:
    """A command line, arguments, a recipe's name, overrides, in any mixture that a launcher takes."""
    at = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if at is not None:
        _ranks(words[:at], draft)
        program = words[at].rsplit("/", 1)[-1]
        rest = words[at + 1 :]
        if program in ENTRIES and not any(word.startswith("--recipe") for word in rest):
            draft.framework = "megatron-bridge"
            _harness(read_harness(words[at:], draft.collected, where, declared.bridge_version), draft)
            return
        words = rest
        draft.launcher = "pretrain"
    if "--recipe" in words or any(word.startswith("--recipe=") for word in words):
        words = _named_recipe(words, draft)
    elif words and not words[0].startswith("-") and not is_override(words[0]) and not bare and at is None:
        _recipe(require_recipe(words[0]).recipe, draft)
        words = words[1:]
    _settings(words, draft, where)


def _named_recipe(words: list[str], draft: _Draft) -> list[str]:
    """`--recipe NAME` of scripts/training."""
    at = next(index for index, word in enumerate(words) if word == "--recipe" or word.startswith("--recipe="))
    inline = words[at].partition("=")[2]
    name = inline or (words[at + 1] if at + 1 < len(words) else "")
    draft.launcher, draft.framework = "pretrain", "megatron-bridge"
    if find_recipe(name) is None:
        draft.complete = False
        draft.notes.append(f"the recipe {name} is not known: absent fields are open")
    else:
        _recipe(name, draft)
    return [*words[:at], *words[at + (1 if inline else 2) :]]


def _recipe(name: str, draft: _Draft) -> None:
    row = require_recipe(name)
    draft.framework, draft.recipe = "megatron-bridge", row.recipe
    draft.gpu, draft.world, draft.core_version = row.hardware or None, row.gpus, RECORDED_CORE
    environment: dict[str, str] = {}
    fill_from_recipe(row, draft.collected, environment)
    _recipe_variables(draft, environment, Origin("recipe", row.recipe))


def _settings(words: list[str], draft: _Draft, where: str) -> None:
    flags = [index for index, word in enumerate(words) if word.startswith("--")]
    head = words[: flags[0]] if flags else words
    overrides = [word for word in words if is_override(word) and not word.startswith("-")]
    if overrides and (any("." in word.partition("=")[0] for word in overrides) or draft.recipe):
        if draft.framework == "unknown":
            draft.framework = "megatron-bridge"
            draft.complete = bool(draft.collected.values)
            if not draft.complete:
                draft.notes.append("overrides of an unknown recipe: absent fields are open")
        environment: dict[str, str] = {}
        for word in overrides:
            read_override(word, draft.collected, environment, where)
        _recipe_variables(draft, environment, Origin("override", where))
        words = [word for word in words if word not in overrides]
    elif overrides and not flags:
        for word in head:
            read_override(word, draft.collected, {}, where)
        draft.complete = bool(draft.collected.values) and draft.complete
        return
    if any(word.startswith("--") for word in words) and draft.framework != "megatron-bridge":
        draft.framework = "megatron-lm"
        draft.launcher = "pretrain"
    if any(read_arguments(words, draft.collected, where)):
        draft.complete = False
        draft.notes.append(f"{where}: some arguments could not be read, so absent fields are open")


def _harness(run: HarnessRun, draft: _Draft) -> None:
    draft.launcher, draft.complete, draft.recipe = run.launcher, run.complete, run.recipe
    draft.gpu, draft.world = run.gpu or draft.gpu, run.world or draft.world
    draft.environment.update(run.exported)
    draft.origins.update({name: Origin("flag", "--custom_env_vars") for name in run.exported})
    draft.core_version = RECORDED_CORE if run.recipe else None
    draft.notes += run.notes
    _recipe_variables(draft, run.recipe_environment, Origin("recipe", run.recipe))


def _recipe_variables(draft: _Draft, environment: Mapping[str, str], origin: Origin) -> None:
    draft.recipe_environment.update(environment)
    draft.origins.update({name: origin for name in environment if name not in draft.environment})


def _ranks(words: Sequence[str], draft: _Draft) -> None:
    """Nodes and processes of torchrun, srun or sbatch."""
    found: dict[str, int] = {}
    for index, word in enumerate(words):
        name, equals, inline = word.lstrip("-").partition("=")
        key = _RANKS.get(name.replace("-", "_"), "nodes" if word == "-N" else None)
        text = inline if equals else (words[index + 1] if index + 1 < len(words) else "")
        number = setting(text)
        if key is not None and word.startswith("-") and isinstance(number, int) and number > 0:
            found[key] = number
    if len(found) == 2:
        draft.world = found["per_node"] * found["nodes"]


def _finish(draft: _Draft, declared: Declared) -> MegatronConfig:
    for pair in declared.settings:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {pair!r} is not FIELD=VALUE")
        draft.collected.set(canonical(name), setting(text), Origin("declared", f"--set {name}"))
    exported = {**draft.environment, **declared.environment}
    origins = {**draft.origins, **{name: Origin("declared", "--env") for name in declared.environment}}
    shadowed = {
        name: value for name, value in draft.recipe_environment.items() if name in exported and exported[name] != value
    }
    return MegatronConfig(
        values=draft.collected.values,
        env={**draft.recipe_environment, **exported},
        framework=draft.framework,
        launcher=draft.launcher,
        complete=draft.complete,
        open_fields=frozenset(draft.collected.open_fields),
        core_version=declared.core_version or draft.core_version,
        bridge_version=declared.bridge_version,
        world_size=declared.world_size or draft.world,
        env_origins=origins,
        shadowed_env=shadowed,
        recipe=draft.recipe,
        gpu=draft.gpu,
        notes=tuple(draft.notes),
    )
