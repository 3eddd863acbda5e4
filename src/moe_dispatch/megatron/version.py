"""Megatron-Core release numbers, compared as far as fields appear and disappear: major and minor."""

from __future__ import annotations

import re

from moe_dispatch.core.errors import UsageError

_RELEASE = re.compile(r"\s*v?(?:core[_-]v?)?(\d+)\.(\d+)(?:[.\-+a-z].*)?\s*", re.IGNORECASE)


def parse_release(text: str) -> tuple[int, int]:
    """Major and minor of `0.19`, `0.19.2`, `0.20.0-dev`, `core_v0.16.0`.

    Raises:
        UsageError: not such a number.
    """
    match = _RELEASE.fullmatch(text)
    if match is None:
        raise UsageError(f"Megatron-Core version {text!r} is not a release number", "write it as 0.19 or 0.19.2")
    return int(match[1]), int(match[2])


def has_reached(version: str, minimum: str) -> bool:
    """Whether release `version` is `minimum` or newer; patch numbers do not count.

    Raises:
        UsageError: one of them is no release number.
    """
    return parse_release(version) >= parse_release(minimum)
