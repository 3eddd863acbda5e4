"""Why recomputation met other shapes than the forward pass: the routing changed, or only the dispatch layout did.

Reports: NVIDIA-NeMo/Automodel#3325, #3743, #2635, #3156. HybridEP builds its receive layout anew, so a recomputed
region that holds the dispatch may get another number of rows for the same routing. With other dispatchers a mismatch
means that the router chose other experts: its scores are not bitwise the same in the recomputation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.megatron.ingest.view import Settings

LAYOUT_DRIFT = "recompute-dispatch-layout-drift"
ROUTER_FLIP = "recompute-router-flip"
UNDECIDED = "recompute-mismatch"

_ROUTER_EXCLUDED = "ignore_router_for_ac"
_KEEP_OUT = "keep dispatch and combine out of the recomputed region, or turn full recomputation off for MoE layers"
_REPLAY = "use a build that replays the layout"
_SAVE_ROUTER = "save the router's output instead of recomputing it (ignore_router_for_ac), or replay the routing"
_SOURCE = "NVIDIA-NeMo/Automodel#3325, #3743, #2635, #3156"


def recompute_class(dispatcher: str | None, *, router_excluded: bool | None, routing_equal: bool | None) -> str:
    """Class of a recompute mismatch.

    Args:
        router_excluded: the router's choice is kept and not recomputed; None where unknown.
        routing_equal: checksums of the chosen experts agree between forward and recomputation; None where unknown.
    """
    if dispatcher == "hybridep" and (routing_equal or (router_excluded and routing_equal is None)):
        return LAYOUT_DRIFT
    if routing_equal is False or (dispatcher not in (None, "hybridep") and router_excluded is not True):
        return ROUTER_FLIP
    return UNDECIDED


def recompute_finding(
    dispatcher: str | None, settings: Settings, shapes: Mapping[str, str], routing_equal: bool | None = None
) -> Finding:
    """The mismatch as a finding, with advice that fits its class."""
    excluded = settings.get(_ROUTER_EXCLUDED)
    router_excluded = excluded if isinstance(excluded, bool) else None
    kind = recompute_class(dispatcher, router_excluded=router_excluded, routing_equal=routing_equal)
    advice = {LAYOUT_DRIFT: (_KEEP_OUT, _REPLAY), ROUTER_FLIP: (_SAVE_ROUTER,), UNDECIDED: (_KEEP_OUT,)}[kind]
    if kind == UNDECIDED and router_excluded is not True:
        advice = (*advice, _SAVE_ROUTER)
    rows = (
        f": {_rows(shapes['saved'])} rows saved, {_rows(shapes['recomputed'])} recomputed" if len(shapes) == 2 else ""
    )
    return Finding(
        id=kind,
        severity=Severity.ERROR,
        message=f"recomputation saw other shapes than the forward pass{rows}",
        why={
            LAYOUT_DRIFT: "the routing is the same, but HybridEP built another receive layout in the recomputation",
            ROUTER_FLIP: "the router chose other experts in the recomputation",
            UNDECIDED: "the log does not say whether the routing or only the dispatch layout changed",
        }[kind],
        advice=advice,
        source=_SOURCE,
    )


def _rows(shape: str) -> str:
    found = re.search(r"\d+", shape)
    return found[0] if found else shape
