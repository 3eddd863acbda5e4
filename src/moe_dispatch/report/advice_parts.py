"""Pieces of a page of advice in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text


def heading(console: Console, title: str) -> None:
    """A title with an empty line above."""
    console.print()
    console.print(Text(title, style="bold"))


def bullet(console: Console, line: str, indent: int = 1) -> None:
    """One item, wrapped with a hanging indent."""
    _wrapped(console, line, " " * indent + "- ", " " * (indent + 2))


def items(console: Console, lines: Iterable[str], indent: int = 1) -> None:
    """Several of them."""
    for line in lines:
        bullet(console, line, indent)


def note(console: Console, line: str, indent: int, *, wrap: bool = True) -> None:
    """A line in the background; one that is copied is not wrapped."""
    if wrap:
        _wrapped(console, line, " " * indent, " " * indent, style="dim")
    else:
        console.print(Text(" " * indent + line, style="dim"), soft_wrap=True)


def settings(console: Console, title: str, arguments: Sequence[str]) -> None:
    """Arguments on one line, to copy."""
    if arguments:
        console.print(Text(f"    {title}: {' '.join(arguments)}"), soft_wrap=True)


def _wrapped(console: Console, line: str, first: str, rest: str, style: str = "") -> None:
    """Wrapped here: rich takes a hundred times as long for the same, and a page has hundreds of lines."""
    text = textwrap.fill(line, console.width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    console.print(Text(text, style=style), soft_wrap=True)
