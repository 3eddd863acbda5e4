"""Ranks, hosts and differences as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moe_dispatch.site.agreement import Difference, Holder

KINDS = {
    "launch": "launch",
    "settings": "setting",
    "versions": "version",
    "libraries": "library",
    "machine": "host",
    "backends": "backend",
}
"""Section -> what one of its fields is."""

OF_HOSTS = ("machine", "backends")
"""Sections in which one rank speaks for its host."""

_SHOWN = 6


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers with runs joined: `0-3, 7`."""
    if not numbers:
        return "none"
    starts = [numbers[0], *(right for left, right in pairwise(numbers) if right != left + 1)]
    ends = [*(left for left, right in pairwise(numbers) if right != left + 1), numbers[-1]]
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True))


def names(hosts: Sequence[str], shown: int = _SHOWN) -> str:
    """Hosts by name; a long list is cut and counted."""
    more = len(hosts) - shown
    return ", ".join(hosts[:shown]) + (f" and {more} more" if more > 0 else "") if hosts else "none"


def holder_value(difference: Difference, holder: Holder) -> str:
    """The value, or that there is none."""
    if holder.value is None:
        return "not set" if difference.section == "settings" else "absent"
    return holder.value or "(empty)"


def holder_place(difference: Difference, holder: Holder) -> str:
    """Hosts with that value and, where each rank speaks for itself, the ranks."""
    where = names(holder.hosts)
    return where if difference.section in OF_HOSTS else f"{where} (rank {ranges(holder.ranks)})"


def describe_differences(differences: Iterable[Difference]) -> str:
    """One sentence that names fields, values, hosts and ranks."""
    found = list(differences)
    parts = [_describe(difference) for difference in found[:_SHOWN]]
    rest = f" | and {len(found) - _SHOWN} more fields" if len(found) > _SHOWN else ""
    count = "1 field" if len(found) == 1 else f"{len(found)} fields"
    return f"ranks differ in {count}: " + " | ".join(parts) + rest


def _describe(difference: Difference) -> str:
    values = [
        f"{holder_value(difference, holder)} on {holder_place(difference, holder)}"
        for holder in difference.holders[:_SHOWN]
    ]
    more = len(difference.holders) - _SHOWN
    values += [f"{more} more"] if more > 0 else []
    return f"{KINDS[difference.section]} {difference.field}: " + "; ".join(values)
