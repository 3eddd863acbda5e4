"""Numbers as a person reads them: one place, so that terminal and HTML agree."""

from __future__ import annotations

from collections.abc import Iterable

from moe_dispatch.decide.contract_table import DifferenceClass, contract_table
from moe_dispatch.decide.stats import Interval
from moe_dispatch.decide.verdict import VerdictKind

UNKNOWN = "unknown"

KIND_TITLES = {
    VerdictKind.WINNER: "Winner",
    VerdictKind.TIE: "Tie",
    VerdictKind.ONLY_AVAILABLE: "Only one available",
    VerdictKind.INCONCLUSIVE: "Inconclusive",
    VerdictKind.NOT_COMPARABLE: "Not comparable",
}

CLASS_TITLES = {
    DifferenceClass.CONFOUNDER: "refused",
    DifferenceClass.DISPATCHER_COUPLED: "coupled",
    DifferenceClass.HARMLESS: "harmless",
    DifferenceClass.CONTROLLED: "controlled",
}

CAPTIONS = {
    "rows_copies": "one row per token and chosen expert",
    "rows_copies_off_rank": "of these, to another rank",
    "rows_copies_off_domain": "of these, to another domain",
    "rows_rank": "one row per token and destination rank",
    "rows_rank_off_rank": "of these, to another rank",
    "rows_rank_off_domain": "of these, to another domain",
    "rows_domain": "one row per token and destination domain",
    "rows_domain_off_domain": "of these, to another domain",
}


def duration(microseconds: float) -> str:
    """`312 us`, `12.3 ms`, `1.45 s`: three significant digits."""
    for limit, divisor, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if microseconds < limit * 0.9995:
            return f"{_three(microseconds / divisor)} {unit}"
    return f"{_three(microseconds / 1e6)} s"


def size(number: float | None) -> str:
    """Bytes in binary units: `512 B`, `1.50 MiB`, or `unknown`."""
    if number is None:
        return UNKNOWN
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{_three(value)} {unit}"
        value /= 1024
    return f"{_three(value)} TiB"


def ratio(interval: Interval | None) -> str:
    """`0.823 (0.801-0.846)`, or `1 (baseline)`."""
    if interval is None:
        return "1 (baseline)"
    return f"{interval.ratio:.3f} ({interval.low:.3f}-{interval.high:.3f})"


def by_group(names: Iterable[str]) -> dict[str, list[str]]:
    """Contract fields in the groups of the table, in its order."""
    table = contract_table()
    grouped: dict[str, list[str]] = {group: [] for group in table.groups}
    for name in names:
        grouped[table.rule(name).group].append(name)
    return {group: members for group, members in grouped.items() if members}


def value(thing: object) -> str:
    """A contract value."""
    if thing is None:
        return UNKNOWN
    if isinstance(thing, (list, tuple)):
        return ", ".join(value(item) for item in thing) or "none"
    return str(thing)


def _three(number: float) -> str:
    magnitude = abs(number)
    return f"{number:.2f}" if magnitude < 9.995 else f"{number:.1f}" if magnitude < 99.95 else f"{number:.0f}"
