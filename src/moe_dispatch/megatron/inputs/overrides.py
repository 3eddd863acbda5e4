"""Hydra overrides and YAML trees of Megatron-Bridge as fields.

Sections as in NVIDIA-NeMo/Megatron-Bridge@067f987d:src/megatron/bridge/training/config.py (ConfigContainer).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from moe_dispatch.megatron.inputs.values import Collected, scalar, setting
from moe_dispatch.megatron.settings import Origin
from moe_dispatch.megatron.settings_fields import Scalar, Setting

SECTIONS = (
    "model",
    "train",
    "optimizer",
    "ddp",
    "scheduler",
    "dataset",
    "logger",
    "tokenizer",
    "checkpoint",
    "dist",
    "rng",
    "mixed_precision",
    "comm_overlap",
    "rerun_state_machine",
    "profiling",
    "env_vars",
    "peft",
    "validation",
)
"""Top-level keys of a ConfigContainer."""
_OVERRIDE = re.compile(r"(?P<mark>\+{1,2}|~)?(?P<key>[A-Za-z_][\w.]*)(?:=(?P<value>.*))?", re.DOTALL)
_MOVED = {
    "train.micro_batch_size": "micro_batch_size",
    "train.global_batch_size": "global_batch_size",
    "train.train_iters": "train_iters",
    "dataset.seq_length": "seq_length",
    "dataset.sequence_length": "seq_length",
    "checkpoint.save": "save",
    "ddp.use_megatron_fsdp": "use_megatron_fsdp",
    "dataset.offline_packing_specs": "offline_packing_specs",
    "dataset.packed_sequence_specs": "offline_packing_specs",
}
_PRECISIONS = ("bf16", "fp16")
_MOST_DEPTH = 40


def is_override(word: str) -> bool:
    """Whether a word looks like `section.key=value` (or a plain `key=value`)."""
    match = _OVERRIDE.fullmatch(word)
    return match is not None and (match["value"] is not None or match["mark"] == "~")


def read_override(word: str, collected: Collected, environment: dict[str, str], where: str = "") -> None:
    """Take one override; the last one of a key wins."""
    match = _OVERRIDE.fullmatch(word)
    if match is None:
        return
    origin = Origin("override", f"{where} {word}".strip())
    if match["mark"] == "~":
        collected.set(canonical(match["key"]), None, origin)
    else:
        take(match["key"], setting(match["value"] or ""), collected, environment, origin)


def take(key: str, value: Setting, collected: Collected, environment: dict[str, str], origin: Origin) -> None:
    """One dotted key into fields or environment."""
    if key.startswith("env_vars."):
        environment[key.removeprefix("env_vars.")] = _text(value)
    elif key == "mixed_precision":
        _precision(value, collected, origin)
    else:
        collected.set(canonical(key), value, origin)


def canonical(key: str) -> str:
    """A dotted key of a ConfigContainer as the name of a field."""
    if key in _MOVED:
        return _MOVED[key]
    return key.removeprefix("model.")


def _text(value: Setting) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _precision(value: Setting, collected: Collected, origin: Origin) -> None:
    """The name of a precision recipe, such as `bf16_with_fp8_current_scaling_mixed`."""
    collected.set("mixed_precision", value, origin)
    for name in _PRECISIONS:
        if str(value).startswith(name):
            collected.set(name, True, origin)
    if "fp8" in str(value):
        collected.set("fp8", "e4m3" if "mxfp8" in str(value) else "hybrid", origin)
    elif "fp4" in str(value):
        collected.set("fp4", "e2m1", origin)


def read_tree(tree: Mapping[object, object], collected: Collected, environment: dict[str, str], where: str) -> None:
    """A parsed YAML: a whole ConfigContainer, its model section, or plain fields."""
    for key, value in _leaves(tree):
        take(key, value, collected, environment, Origin("file", f"{where} {key}"))


def _leaves(tree: Mapping[object, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Setting]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < _MOST_DEPTH and "_call_" not in value and "_name_" not in value:
            yield from _leaves(value, f"{name}.", depth + 1)
        elif isinstance(value, Mapping):
            yield name, str(value.get("_name_", value.get("_target_", "")))
        elif str(key) != "_target_":
            yield name, plain(value)


def plain(value: object) -> Setting:
    """A YAML value as a setting; lists become tuples of scalars."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(_scalar(each) for each in value)
    return _scalar(value)


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return str(value.get("_name_", value))
    text = str(value)
    return scalar(text) if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", text) else text
