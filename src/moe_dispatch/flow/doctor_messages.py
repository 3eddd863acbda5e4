"""What ranks tell each other when they meet: a JSON object a line, digests first, fields only where they differ."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.errors import LaunchError
from moe_dispatch.site.agreement import Decision
from moe_dispatch.site.agreement_policy import Section

SERVICE = "moe-dispatch-doctor/1"
LINE_LIMIT_BYTES = 16 << 20
"""A host's view holds the end of every probe's output; nothing legitimate is longer."""


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hello(Message):
    """Rank 0 speaks first, so that a stranger's service on a port is never sent anything."""

    service: str
    job: str


class Arrival(Message):
    """A rank and a digest of each section of its fields.

    Fields:
        probes: a view of its host will follow.
    """

    rank: int = Field(ge=0)
    world: int = Field(ge=1)
    node: int | None
    host: str
    probes: bool
    digests: dict[Section, str]


class Turn(Message):
    """Rank 0 asks a rank for its fields of these sections (usually none), or tells it the decision and ends."""

    sections: tuple[Section, ...] = ()
    decision: Decision | None = None


class Fields(Message):
    """The answer."""

    sections: dict[Section, dict[str, str]]


AnyMessage = TypeVar("AnyMessage", bound=BaseModel)


async def send(writer: asyncio.StreamWriter, message: BaseModel) -> None:
    """Write a message.

    Raises:
        OSError: the connection is gone.
    """
    writer.write(message.model_dump_json().encode() + b"\n")
    await writer.drain()


async def receive(reader: asyncio.StreamReader, kind: type[AnyMessage]) -> AnyMessage:
    """Read a message of this kind.

    Raises:
        LaunchError: the connection ended, or what came is something else.
    """
    try:
        line = await reader.readline()
        if line:
            return kind.model_validate_json(line)
    except (OSError, ValueError) as error:  # ValueError: no such message, or a line beyond the limit
        raise LaunchError(f"no {kind.__name__} came over a connection between ranks: {error}") from error
    raise LaunchError("a connection between ranks ended early")
