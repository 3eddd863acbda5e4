"""How an orchestration tells its caller what it is doing, without knowing how that is shown."""

from __future__ import annotations

from typing import Protocol

from moe_dispatch.bench.run import BenchEvent


class Listener(Protocol):
    """Shows progress to a person, or ignores it."""

    def note(self, text: str) -> None:
        """One line about a step."""

    def measured(self, event: BenchEvent) -> None:
        """Progress of a measuring stage."""

    def close(self) -> None:
        """The measurements are over; release the terminal."""
