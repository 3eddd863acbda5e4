"""A Finding is what gate, lint, topology, ingest and compare all return."""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel, ConfigDict


class Severity(str, Enum):
    """How bad: `error` makes a command exit 1, `warning` and `info` do not."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Finding(BaseModel):
    """One observation, with the reason and the advice.

    Fields:
        id: stable kebab-case identifier, for example `hybridep-domain-ranks-mismatch`.
        severity: see `Severity`.
        message: what was seen, with the value.
        why: why it matters.
        advice: what to do, one entry each.
        source: where the rule comes from (`repo@commit:path`, a document's name, or `measured`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    severity: Severity
    message: str
    why: str = ""
    advice: tuple[str, ...] = ()
    source: str = ""
