"""What sub-commands share: the --json option, JSON on stdout, and plain tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

_LOG_WIDTH = 160

JsonOption = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]


def print_json(document: Any) -> None:
    """One JSON document on stdout; pydantic models and tuples inside are written as objects and lists."""
    json.dump(document, sys.stdout, indent=2, default=_plain)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """A line for a person on stderr, so that stdout stays the result."""
    print(text, file=sys.stderr, flush=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], log_width: int = _LOG_WIDTH) -> None:
    """A table on stdout; columns of numbers are aligned to the right, names in the first one stay whole."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        numbers = all(isinstance(row[index], int | float) or row[index] in ("?", "") for row in kept)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold", no_wrap=index == 0)
    for row in kept:
        table.add_row(*(Text(str(value)) for value in row))
    # A log or a pipe has no width to keep to: columns that are folded there are hard to read and to search.
    Console(soft_wrap=False, width=None if sys.stdout.isatty() else log_width).print(table)


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)
