"""Comparing version numbers of packages by their leading integers."""

from __future__ import annotations

import re

_CONDITION = re.compile(r"(==|>=|<=|>|<)\s*(\d.*)")


def release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version without trailing zeros: `2.30.4+cuda13` is (2, 30, 4); `v1.0` is (1,)."""
    match = re.match(r"[vV]?(\d+(?:\.\d+)*)", version.strip())
    numbers = [int(part) for part in match[1].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def matches(version: str, condition: str) -> bool:
    """Whether a version fulfils `==3.4.5`, `>=3.5.19`, `<2`.

    Raises:
        ValueError: the condition is none.
    """
    parsed = _CONDITION.fullmatch(condition.strip())
    if parsed is None:
        raise ValueError(f"version condition {condition!r} is not one of ==, >=, <=, >, < and a number")
    have, want = release(version), release(parsed[2])
    return {
        "==": have == want,
        ">=": have >= want,
        "<=": have <= want,
        ">": have > want,
        "<": have < want,
    }[parsed[1]]
