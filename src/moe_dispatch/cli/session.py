"""Progress of the commands that measure, on stderr so that stdout stays the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moe_dispatch.flow.events import Listener


def progress() -> Listener:
    """Bars on a terminal, plain lines in a log."""
    from moe_dispatch.report.progress import ProgressView
    from moe_dispatch.report.terminal import make_console

    return ProgressView(make_console(stderr=True))
