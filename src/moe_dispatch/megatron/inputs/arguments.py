"""Megatron-LM's argument list as fields.

Most flags are generated from the dataclasses (`--` and the field with hyphens); the others are mapped here, after
NVIDIA/Megatron-LM@d98e8a64:megatron/training/arguments.py and argument_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from moe_dispatch.megatron.inputs.expand import OPEN, open_name
from moe_dispatch.megatron.inputs.values import Collected, setting
from moe_dispatch.megatron.settings import Origin
from moe_dispatch.megatron.settings_fields import Setting, settings_fields

_RENAMED = {
    "num_experts": "num_moe_experts",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "disable_bias_linear": "no_add_bias_linear",
    "seq_len": "seq_length",
}
_LAYERS_PER_STAGE = "num_layers_per_virtual_pipeline_stage"
_HOLDS_ARGUMENTS = re.compile(r"^$|ARG|OPT|EXTRA|FLAG|PARAM|CONFIG|MORE", re.IGNORECASE)
"""Names of variables that hold arguments rather than a value."""
_TEXT = ("moe_router_dtype", "moe_router_load_balancing_type", "cuda_graph_impl", "data_path", "save", "load")
"""Fields whose words are names, also where they look like `none`."""


def read_arguments(words: Sequence[str], collected: Collected, where: str, kind: str = "flag") -> list[str]:
    """Read flags into fields.

    Args:
        where: file or description, for origins.

    Returns:
        Words that belong to no flag and could not be read.
    """
    loose: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--") or word == "--":
            loose.append(word)
            continue
        flag, equals, inline = word[2:].partition("=")
        values = [inline] if equals else []
        while not equals and at < len(words) and not words[at].startswith("--"):
            if not _is_value(flag, values, words[at]):
                loose.append(words[at])
            else:
                values.append(words[at])
            at += 1
        _take(flag, values, collected, Origin("script" if kind == "script" else "flag", f"{where} --{flag}"))
    _virtual_stages(collected)
    return [word for word in loose if OPEN in word]


def _is_value(flag: str, values: list[str], word: str) -> bool:
    """Whether a word is this flag's value, or a variable that stands for any number of further arguments."""
    variable = open_name(word)
    if variable is None:
        return True
    name = flag.replace("-", "_")
    known = settings_fields().get(_RENAMED.get(name, name))
    if known is not None:
        return known.type != "bool" and not values
    return not values and not _HOLDS_ARGUMENTS.search(variable)


def _take(flag: str, values: list[str], collected: Collected, origin: Origin) -> None:
    if OPEN in flag:
        return
    name = flag.replace("-", "_")
    name = _RENAMED.get(name, name)
    negated = next((name.removeprefix(prefix) for prefix in ("no_", "disable_") if name.startswith(prefix)), None)
    if not values:
        known = settings_fields().get(negated or "")
        if negated and (known is None or known.type == "bool"):
            collected.set(negated, False, origin)
        else:
            collected.set(name, True, origin)
        return
    collected.set(name, _value(name, values), origin)


def _value(name: str, values: list[str]) -> Setting:
    known = settings_fields().get(name)
    if name in _TEXT or (known is not None and known.type == "str"):
        return values[0] if len(values) == 1 else tuple(values)
    if len(values) == 1:
        return setting(values[0])
    parts = [setting(value) for value in values]
    return tuple(part if not isinstance(part, tuple) else str(part) for part in parts)


def _virtual_stages(collected: Collected) -> None:
    """The older flag gives layers of a stage instead of stages of a rank."""
    per_stage = collected.get(_LAYERS_PER_STAGE)
    layers, stages = collected.get("num_layers"), collected.get("pipeline_model_parallel_size")
    target = "virtual_pipeline_model_parallel_size"
    if not isinstance(per_stage, int) or target in collected.values:
        return
    origin = collected.values[_LAYERS_PER_STAGE].origin
    if isinstance(layers, int) and isinstance(stages, int) and per_stage > 0 and stages > 0:
        collected.set(target, layers // stages // per_stage, origin)
    else:
        collected.open_fields.add(target)
