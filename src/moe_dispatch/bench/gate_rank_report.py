"""What one rank of a gate's group writes down, step by step; without torch, because the parent reads it."""

from __future__ import annotations

from dataclasses import dataclass

from moe_dispatch.site.gate_result import Level


@dataclass
class RankReport:
    """How far one rank came.

    Fields:
        reached: last level that passed, `supported` before the first.
        error_type, error, raised_by, traceback: of the exception that stopped it.
        failed_at_s: clock of this host at that moment; who failed first did not fail because of another.
        wrong: what the oracle found wrong.
        checks: checks of the oracle that passed.
    """

    rank: int
    reached: Level = "supported"
    error_type: str = ""
    error: str = ""
    raised_by: str = ""
    traceback: str = ""
    failed_at_s: float = 0.0
    wrong: str = ""
    checks: int = 0
