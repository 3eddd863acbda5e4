"""Progress of a measurement: bars over arms and rounds on a terminal, plain lines elsewhere.

The object fits what an orchestration talks to: `note`, `measured`, `close`. Events are recognised by their attributes
(those of a bench event), so that this file needs nothing of the measuring layer.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class MeasureEvent(Protocol):
    """What an event of a measuring stage tells."""

    @property
    def kind(self) -> str:
        """`launch`, `tokens`, `visit`, `refused` or `record`."""

    @property
    def stage(self) -> str:
        """Stage of the session."""

    @property
    def launch(self) -> int:
        """Index of the launch."""

    @property
    def launches(self) -> int:
        """Launches of the stage."""

    @property
    def done(self) -> int:
        """Finished visits of the stage."""

    @property
    def total(self) -> int:
        """Planned visits of the stage."""

    @property
    def arm(self) -> str:
        """Label of the arm, or nothing."""

    @property
    def routing(self) -> str:
        """Routing, or nothing."""

    @property
    def detail(self) -> str:
        """Text for a log line."""


class ProgressView:
    """Shows progress on a console; usable as a context manager.

    On a terminal one bar per stage counts visits of arms and names launch, arm and routing. Elsewhere one line is
    printed for each launch, each refusal and each failed record, and nothing is redrawn.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def note(self, text: str) -> None:
        """One line about a step; it stays above the bars."""
        target = self._live.console if self._live else self._console
        target.print(escape(text))

    def measured(self, event: MeasureEvent) -> None:
        """Progress of a measuring stage."""
        line = _line(event)
        if not self._console.is_terminal:
            if line:
                self.note(line)
            return
        if line and event.kind in ("refused", "record", "tokens"):
            self.note(line)
        live = self._started()
        if event.stage not in self._tasks:
            self._tasks[event.stage] = live.add_task(event.stage, total=max(event.total, 1), what="starting ranks")
        live.update(
            self._tasks[event.stage],
            completed=min(event.done, max(event.total, 1)),
            total=max(event.total, 1),
            what=_what(event),
        )

    def close(self) -> None:
        """Leave the terminal as it was; may be called again."""
        if self._live is not None:
            self._live.stop()
        self._live = None
        self._tasks = {}

    def _started(self) -> Progress:
        if self._live is None:
            self._live = Progress(
                TextColumn("{task.description:<8}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[what]}", markup=False),
                console=self._console,
            )
            self._live.start()
        return self._live


def _what(event: MeasureEvent) -> str:
    parts = [f"launch {event.launch + 1}/{event.launches}", event.arm, event.routing]
    return " ".join(part for part in parts if part)


def _line(event: MeasureEvent) -> str:
    """The plain line of an event; empty for events that only move a bar."""
    where = f"{event.stage}: launch {event.launch + 1} of {event.launches}"
    if event.kind == "launch":
        return f"{where}: {event.detail}"
    if event.kind == "tokens":
        return f"{event.stage}: {event.detail} tokens per rank"
    if event.kind == "refused":
        return f"{where}: {event.arm} refused: {event.detail}"
    if event.kind == "record" and event.detail != "ok":
        return f"{where}: {event.arm}: {event.detail}"
    return ""
