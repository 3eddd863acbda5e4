"""A page of advice: lines that are wrapped here and printed in one go.

Rich takes a hundred times as long to wrap the same, and a page has hundreds of lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text


class Page:
    """Lines with their styles, for one width."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._text = Text()

    def line(self, text: str = "", style: str = "") -> None:
        """A line as it is."""
        self._text.append(f"{text}\n", style=style or None)

    def prose(self, text: str, first: str = "", rest: str = "", style: str = "") -> None:
        """Wrapped lines, the first and the others behind their indents."""
        wrapped = textwrap.fill(text, self.width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
        self.line(wrapped, style)

    def heading(self, title: str) -> None:
        """A title with an empty line above."""
        self.line()
        self.line(title, "bold")

    def bullet(self, text: str, indent: int = 1) -> None:
        """One item with a hanging indent."""
        self.prose(text, " " * indent + "- ", " " * (indent + 2))

    def items(self, lines: Iterable[str], indent: int = 1) -> None:
        """Several of them."""
        for line in lines:
            self.bullet(line, indent)

    def note(self, text: str, indent: int, *, wrap: bool = True) -> None:
        """A line in the background; one that is copied is not wrapped."""
        if wrap:
            self.prose(text, " " * indent, " " * indent, "dim")
        else:
            self.line(" " * indent + text, "dim")

    def settings(self, title: str, arguments: Sequence[str]) -> None:
        """Arguments on one line, to copy."""
        if arguments:
            self.line(f"    {title}: {' '.join(arguments)}")

    def show(self, console: Console) -> None:
        """Print it."""
        console.print(self._text, soft_wrap=True, end="")
