"""What both sides of a meeting of ranks share: limits, what a rank brings, and what rank 0 gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from moe_dispatch.flow.doctor_messages import Arrival
from moe_dispatch.site.agreement import Group, Member
from moe_dispatch.site.agreement_policy import Section
from moe_dispatch.site.rank_context import RankContext
from moe_dispatch.site.rank_report import HostView, digest

GREETING_S = 2.0
"""Limit for a first word over a new connection."""

GOODBYE_S = 2.0
"""Limit for the last one."""

LATE_S = 5.0
"""Limit for an answer that needs no work."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds: for all ranks to arrive, and for a host's view to come after that."""

    arrive_s: float
    view_s: float


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What rank 0 knows when it decides.

    Fields:
        groups: equal ranks by section, from all that arrived.
        views: by host.
        lost: ranks that arrived and went away; blind: hosts whose view did not come in time.
        world: ranks of the launch as rank 0 knows it.
    """

    members: tuple[Member, ...]
    groups: Mapping[Section, Sequence[Group]]
    views: Mapping[str, HostView]
    lost: tuple[int, ...]
    blind: tuple[str, ...]
    world: int


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """What this rank brings: its fields by section, and the view of its host once that is known."""

    host: str
    sections: Mapping[Section, dict[str, str]]
    view: Future[HostView]


def arrival_of(context: RankContext, own: OwnPart) -> Arrival:
    """What a rank says first."""
    return Arrival(
        rank=context.rank,
        world=context.world,
        node=context.node,
        host=own.host,
        probes=context.probes_for_host,
        digests={section: digest(fields) for section, fields in own.sections.items()},
    )
