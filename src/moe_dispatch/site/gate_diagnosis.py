"""A reason with its class and its fix, and the lines of a message that fit into a table."""

from __future__ import annotations

from dataclasses import dataclass

from moe_dispatch.site.gate_result import ReasonClass

_MAX_LINE = 300


@dataclass(frozen=True)
class Diagnosis:
    """Class, sentence and fix; `variant` says which feature is missing."""

    reason_class: ReasonClass
    reason: str
    fix: str
    variant: str = ""


def first_line(text: str) -> str:
    """The first line that is not empty, cut to what a table can show."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " ..."


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return first_line("\n".join(reversed(text.splitlines())))
