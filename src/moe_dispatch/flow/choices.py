"""Choices as a person writes them: `hierarchical`, or with knobs `hierarchical:chunks=8,domain_size=4`."""

from __future__ import annotations

from collections.abc import Sequence

from moe_dispatch.core.choice import Choice, KnobValue
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import get_backend, validate_knobs


def parse_choice(text: str, knobs: Sequence[str] = ()) -> Choice:
    """Read a dispatcher and its knobs.

    Args:
        knobs: more knobs, each `name=value`.

    Raises:
        UsageError: unknown dispatcher or knob, a knob without a value, or a value that is not allowed.
    """
    name, _, inline = text.partition(":")
    spec = get_backend(name.strip())
    given: dict[str, KnobValue] = {}
    for part in (*filter(None, inline.split(",")), *knobs):
        knob, equals, value = part.partition("=")
        if not equals or not knob.strip():
            raise UsageError(f"knob {part!r} is not name=value", f"write {spec.name}:name=value, for example chunks=8")
        given[knob.strip()] = value.strip()
    return Choice(dispatcher=spec.name, knobs=validate_knobs(spec, given))
