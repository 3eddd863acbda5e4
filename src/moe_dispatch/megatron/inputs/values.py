"""Texts as values of fields: `true`, `null`, numbers, lists, and Megatron-LM's notation for layer patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from moe_dispatch.megatron.inputs.expand import OPEN
from moe_dispatch.megatron.settings import Origin, Value
from moe_dispatch.megatron.settings_fields import Scalar, Setting

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_LAYERS = r"\[[\d,\s]*\](?:\s*\*\s*\d+)?"
_PATTERN = re.compile(rf"\(?\s*{_LAYERS}(?:\s*\+\s*{_LAYERS})*\s*\)?")
_PART = re.compile(r"\[([\d,\s]*)\](?:\s*\*\s*(\d+))?")
_MOST_LAYERS = 4096
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "none": None, "~": None}


def scalar(text: str) -> Scalar:
    """A YAML-like scalar; quotes are taken off, anything unknown stays text."""
    stripped = text.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] and stripped[0] in "\"'":
        return stripped[1:-1]
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    if _INTEGER.fullmatch(stripped):
        return int(stripped)
    return float(stripped) if _FLOAT.fullmatch(stripped) else stripped


def setting(text: str) -> Setting:
    """A scalar, a list in brackets, or a layer pattern such as `([0]*3+[1]*45)`."""
    stripped = text.strip()
    if _PATTERN.fullmatch(stripped) and ("*" in stripped or "+" in stripped):
        return layer_pattern(stripped)
    if stripped.startswith("[") and stripped.endswith("]"):
        return tuple(scalar(part) for part in stripped[1:-1].split(",") if part.strip())
    return scalar(stripped)


def layer_pattern(text: str) -> Setting:
    """A pattern as a tuple; the text itself when it is absurdly long."""
    layers: list[Scalar] = []
    for match in _PART.finditer(text):
        repeat = int(match[2] or 1)
        part = [int(each) for each in match[1].split(",") if each.strip()]
        if len(layers) + len(part) * repeat > _MOST_LAYERS:
            return text
        layers += part * repeat
    return tuple(layers)


class Collected:
    """Values while they are read: the last writer wins, unreadable ones are kept apart."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.open_fields: set[str] = set()

    def set(self, name: str, value: Setting, origin: Origin) -> None:
        """Take a value; one with a mark of something unknown makes the field unknown."""
        parts: Iterable[Scalar] = value if isinstance(value, tuple) else (value,)
        if any(isinstance(part, str) and OPEN in part for part in parts):
            self.values.pop(name, None)
            self.open_fields.add(name)
            return
        self.open_fields.discard(name)
        self.values[name] = Value(value, origin)

    def get(self, name: str) -> Setting:
        """The value so far, None without."""
        found = self.values.get(name)
        return found.value if found else None
