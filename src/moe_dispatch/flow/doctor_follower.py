"""Every other rank of a meeting: it finds rank 0, says what it is asked, and takes over the decision."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from moe_dispatch.core.errors import LaunchError
from moe_dispatch.flow.doctor_meeting_parts import GOODBYE_S, GREETING_S, LATE_S, Limits, OwnPart, arrival_of
from moe_dispatch.flow.doctor_messages import LINE_LIMIT_BYTES, SERVICE, Fields, Hello, Turn, receive, send
from moe_dispatch.site.agreement import Decision
from moe_dispatch.site.rank_context import RankContext

_PAUSE_S = 0.1
_LOOK_AT_0 = "look at the output of rank 0"


async def follow(context: RankContext, own: OwnPart, limits: Limits, ports: Sequence[int]) -> Decision:
    """Take part in the meeting and return what rank 0 decides.

    Raises:
        LaunchError: rank 0 was not found, went away, or did not decide in time.
    """
    reader, writer = await _find_leader(context, limits.arrive_s, ports)
    whole_s = limits.arrive_s + limits.view_s + LATE_S + GOODBYE_S
    try:
        return await asyncio.wait_for(_take_part(context, own, reader, writer), whole_s)
    except asyncio.TimeoutError as error:
        raise LaunchError(f"rank 0 on {context.master} did not decide within {whole_s:.0f} s", _LOOK_AT_0) from error
    except (LaunchError, OSError) as error:
        raise LaunchError(f"rank 0 on {context.master} went away before it decided", _LOOK_AT_0) from error
    finally:
        writer.close()


async def _take_part(
    context: RankContext, own: OwnPart, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Decision:
    await send(writer, arrival_of(context, own))
    turn = await receive(reader, Turn)
    if turn.decision is not None:
        return turn.decision
    if turn.sections:
        await send(writer, Fields(sections={section: own.sections[section] for section in turn.sections}))
    if context.probes_for_host:
        view = await asyncio.wrap_future(own.view)
        await send(writer, view)
    decision = (await receive(reader, Turn)).decision
    if decision is None:
        raise LaunchError("rank 0 asked twice")
    return decision


async def _find_leader(
    context: RankContext, limit_s: float, ports: Sequence[int]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    seen = "nothing listens there"
    while loop.time() < deadline:
        for port in ports:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(context.master, port, limit=LINE_LIMIT_BYTES), GREETING_S
                )
            except (OSError, asyncio.TimeoutError) as error:
                seen = str(error) or "no answer"
                continue
            with contextlib.suppress(LaunchError, asyncio.TimeoutError):
                hello = await asyncio.wait_for(receive(reader, Hello), GREETING_S)
                if hello.service == SERVICE and hello.job == context.job:
                    return reader, writer
            seen = f"port {port} belongs to something else"
            writer.close()
        await asyncio.sleep(_PAUSE_S)
    where = f"{context.master}:{ports[0]}" + (f"-{ports[-1]}" if len(ports) > 1 else "")
    raise LaunchError(
        f"rank {context.rank} did not find rank 0 at {where} within {limit_s:g} s: {seen}",
        "start all ranks together, check MASTER_ADDR and that its ports are open; or use --rank-report and --merge",
    )
