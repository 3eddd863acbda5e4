"""Rank 0 of a meeting: it hears the others, asks where they differ, and tells all of them one decision."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from moe_dispatch.core.errors import LaunchError
from moe_dispatch.flow.doctor_meeting_parts import (
    GOODBYE_S,
    GREETING_S,
    LATE_S,
    Gathered,
    Limits,
    OwnPart,
    arrival_of,
)
from moe_dispatch.flow.doctor_messages import (
    LINE_LIMIT_BYTES,
    SERVICE,
    Arrival,
    Fields,
    Hello,
    Turn,
    receive,
    send,
)
from moe_dispatch.site.agreement import Decision, Group, Member, host_names
from moe_dispatch.site.agreement_policy import Section
from moe_dispatch.site.rank_context import RankContext
from moe_dispatch.site.rank_report import HostView


@dataclass(eq=False)
class _Peer:
    """A connected rank."""

    arrival: Arrival
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sections: dict[Section, dict[str, str]] = field(default_factory=dict)
    view: HostView | None = None
    lost: bool = False


class Leader:
    """Rank 0."""

    def __init__(
        self, context: RankContext, own: OwnPart, conclude: Callable[[Gathered], Decision], limits: Limits
    ) -> None:
        self._context, self._own, self._conclude, self._limits = context, own, conclude, limits
        self._me = arrival_of(context, own)
        self._peers: list[_Peer] = []
        self._complete = asyncio.Event()
        self._last_turn: Turn | None = None
        self._check_complete()

    async def run(self, ports: Sequence[int]) -> Decision:
        """Hold the meeting.

        Raises:
            LaunchError: no port is free.
        """
        server = await asyncio.start_server(self._greet, sock=_listen(ports), limit=LINE_LIMIT_BYTES)
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._complete.wait(), self._limits.arrive_s)
            present = list(self._peers)
            await self._ask_for_differences(present)
            own_view, *_ = await asyncio.gather(
                self._own_view(), *(self._take_view(peer) for peer in present if peer.arrival.probes)
            )
            decision = self._conclude(self._gathered(present, own_view))
            self._last_turn = Turn(decision=decision)
            await asyncio.gather(*(self._dismiss(peer) for peer in self._peers))
            return decision
        finally:
            server.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await send(writer, Hello(service=SERVICE, job=self._context.job))
            peer = _Peer(await asyncio.wait_for(receive(reader, Arrival), GREETING_S), reader, writer)
        except (LaunchError, OSError, asyncio.TimeoutError):
            writer.close()  # a port scanner, or a rank of another launch
            return
        self._peers.append(peer)
        self._check_complete()
        if self._last_turn is not None:  # too late to be heard, but it must end as the others do
            await self._dismiss(peer)

    def _check_complete(self) -> None:
        if {self._me.rank, *(peer.arrival.rank for peer in self._peers)} >= set(range(self._context.world)):
            self._complete.set()

    async def _ask_for_differences(self, present: Sequence[_Peer]) -> None:
        """Ask one rank of each group that is not like rank 0 for its fields; tell the others that none are wanted."""
        wanted: dict[_Peer, list[Section]] = {peer: [] for peer in present}
        for section, own_digest in self._me.digests.items():
            seen = {own_digest}
            for peer in present:
                other = peer.arrival.digests.get(section, "")
                if other not in seen:
                    seen.add(other)
                    wanted[peer].append(section)
        await asyncio.gather(*(self._ask(peer, tuple(sections)) for peer, sections in wanted.items()))

    async def _ask(self, peer: _Peer, sections: tuple[Section, ...]) -> None:
        try:
            await send(peer.writer, Turn(sections=sections))
            if sections:
                answer = await asyncio.wait_for(receive(peer.reader, Fields), LATE_S)
                peer.sections = dict(answer.sections)
        except (LaunchError, OSError, asyncio.TimeoutError):
            peer.lost = True

    async def _own_view(self) -> HostView | None:
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._own.view)), self._limits.view_s)
        return None

    async def _take_view(self, peer: _Peer) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            try:
                peer.view = await asyncio.wait_for(receive(peer.reader, HostView), self._limits.view_s)
            except (LaunchError, OSError):
                peer.lost = True

    async def _dismiss(self, peer: _Peer) -> None:
        assert self._last_turn is not None
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(send(peer.writer, self._last_turn), GOODBYE_S)
            await asyncio.wait_for(peer.reader.read(), GOODBYE_S)  # the rank closes first: no port is left in TIME_WAIT
        peer.writer.close()

    def _gathered(self, present: Sequence[_Peer], own_view: HostView | None) -> Gathered:
        arrivals = [self._me, *(peer.arrival for peer in present)]
        hosts = host_names(arrivals)
        views = [own_view, *(peer.view for peer in present)]
        seen = {host: view for host, view in zip(hosts, views, strict=True) if view is not None}
        return Gathered(
            members=tuple(Member(rank=one.rank, host=host) for one, host in zip(arrivals, hosts, strict=True)),
            groups={section: self._groups(section, present) for section in self._me.digests},
            views=seen,
            lost=tuple(sorted(peer.arrival.rank for peer in present if peer.lost or peer.reader.at_eof())),
            blind=tuple(sorted({host for host in hosts if host not in seen})),
            world=self._context.world,
        )

    def _groups(self, section: Section, present: Iterable[_Peer]) -> list[Group]:
        ranks = defaultdict(list, {self._me.digests[section]: [self._me.rank]})
        fields = {self._me.digests[section]: self._own.sections[section]}
        for peer in present:
            key = peer.arrival.digests.get(section, "")
            ranks[key].append(peer.arrival.rank)
            if section in peer.sections:
                fields[key] = peer.sections[section]
        return [Group(fields=fields[key], ranks=tuple(sorted(found))) for key, found in ranks.items() if key in fields]


def _listen(ports: Sequence[int]) -> socket.socket:
    """Listen on the first port that is free, on all addresses of this host."""
    reasons: list[str] = []
    for port in ports:
        listening = _listen_on(port, reasons)
        if listening is not None:
            return listening
    which = f"port {ports[0]} is" if len(ports) == 1 else f"ports {ports[0]}-{ports[-1]} are"
    raise LaunchError(
        f"rank 0 cannot listen for the other ranks: {which} not available ({reasons[-1]})",
        "give a free port of rank 0's host with --port, the same on every rank",
    )


def _listen_on(port: int, reasons: list[str]) -> socket.socket | None:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a host may have IPv6 built in and switched off
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        reasons.append("in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error))
        return None
