"""Pieces of a page of advice in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def heading(console: Console, title: str) -> None:
    """A title with an empty line above."""
    console.print()
    console.print(Text(title, style="bold"))


def bullet(console: Console, line: str, indent: int = 1) -> None:
    """One item, wrapped with a hanging indent."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(" " * indent + "-", Text(line))
    console.print(grid)


def items(console: Console, lines: Iterable[str], indent: int = 1) -> None:
    """Several of them."""
    for line in lines:
        bullet(console, line, indent)


def note(console: Console, line: str, indent: int, *, wrap: bool = True) -> None:
    """A line in the background; one that is copied is not wrapped."""
    if wrap:
        console.print(Padding(Text(line, style="dim"), (0, 0, 0, indent)))
    else:
        console.print(Text(" " * indent + line, style="dim"), soft_wrap=True)


def settings(console: Console, title: str, arguments: Sequence[str]) -> None:
    """Arguments on one line, to copy."""
    if arguments:
        console.print(Text(f"    {title}: {' '.join(arguments)}"), soft_wrap=True)
