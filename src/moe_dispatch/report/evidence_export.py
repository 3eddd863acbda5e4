"""Evidence rows as JSON objects and as one CSV: the stored fields, and what is derived from them under its own name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from moe_dispatch.evidence.published.files import plain
from moe_dispatch.evidence.published.pairs import Arm, Paired
from moe_dispatch.evidence.published.rows import Misfit, Row, TrainingRow


def document(row: Row) -> dict[str, Any]:
    """A row as a JSON object: stored fields that are not empty, `kind`, and the derived ones."""
    return {"kind": row.kind, **plain(row), **_derived(row)}


def csv_text(rows: Iterable[Row]) -> str:
    """A table with a line for each row and a column for each field of any of their kinds; `kind` and `id` first."""
    lines = [{key: _cell(value) for key, value in _flat(row).items()} for row in rows]
    columns = list(dict.fromkeys(("kind", "id", *(key for line in lines for key in line))))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _derived(row: Row) -> dict[str, Any]:
    derived: dict[str, Any] = {"basis": row.basis}
    if isinstance(row, TrainingRow):
        derived |= {"dispatcher": row.dispatcher, "step_s": row.step_s}
    elif isinstance(row, Paired):
        winner = row.winner
        derived |= {"speedup": row.speedup, "margin": row.margin, "winner": winner.label if winner else None}
    return derived


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {"kind": row.kind}
    for each in fields(row):
        value = getattr(row, each.name)
        if isinstance(value, Arm):
            flat |= {f"{each.name}_{part.name}": getattr(value, part.name) for part in fields(value)}
        else:
            flat[each.name] = value
    return flat | _derived(row)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "; ".join(f"{each.check}: {each.detail}" if isinstance(each, Misfit) else str(each) for each in value)
    if isinstance(value, dict):
        return "; ".join(f"{key}={each}" for key, each in value.items())
    return value
