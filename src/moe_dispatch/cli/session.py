"""Progress on stderr for the commands that measure; nothing at all with --json."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moe_dispatch.flow.events import Listener


def progress_for(as_json: bool) -> Listener:
    """Bars on a terminal, plain lines in a log, silence beside JSON."""
    if as_json:
        from moe_dispatch.flow.events import Silent

        return Silent()
    from moe_dispatch.report.progress import ProgressView
    from moe_dispatch.report.terminal import make_console

    return ProgressView(make_console(stderr=True))
