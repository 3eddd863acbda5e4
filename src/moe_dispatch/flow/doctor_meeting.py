"""All ranks of a launch meet at rank 0 over TCP, without torch, within a time limit; rank 0 decides for all.

Three steps: every rank sends digests; rank 0 asks one rank of each group that differs for its fields, and takes the
view of its host from one rank of each node; the decision goes back to all. A rank that does not come, goes away or
stays silent is named in the decision and never waited for beyond the limit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from moe_dispatch.flow.doctor_follower import follow
from moe_dispatch.flow.doctor_leader import Leader
from moe_dispatch.flow.doctor_meeting_parts import Gathered, Limits, OwnPart
from moe_dispatch.site.agreement import Decision
from moe_dispatch.site.rank_context import RankContext

_PORTS_TRIED = 4


def meet(
    context: RankContext,
    own: OwnPart,
    conclude: Callable[[Gathered], Decision],
    limits: Limits,
    port: int | None = None,
) -> Future[Decision]:
    """Start meeting in the background, so that this thread can look at the machine meanwhile. Collective.

    Args:
        conclude: makes the decision, on rank 0 only, in the background thread.
        port: where rank 0 listens; by default the launcher's port or one of the next few.

    Returns:
        The decision, the same on every rank; or a LaunchError: rank 0 cannot listen, did not answer, or went away.
    """
    result: Future[Decision] = Future()
    ports = ports_of(context, port)
    lead = Leader(context, own, conclude, limits) if context.rank == 0 else None
    work = lead.run(ports) if lead else follow(context, own, limits, ports)

    def run() -> None:
        try:
            result.set_result(asyncio.run(work))
        except BaseException as error:  # handed to the thread that waits for the result
            result.set_exception(error)

    threading.Thread(target=run, name="doctor-meeting", daemon=True).start()
    return result


def ports_of(context: RankContext, port: int | None) -> tuple[int, ...]:
    """Ports that rank 0 tries in turn, computed alike on all ranks; torchrun may itself sit on the first."""
    if port is not None:
        return (port,)
    first = context.port + context.port_taken
    return tuple(range(first, min(first + _PORTS_TRIED, 65536)))
