"""The ceiling: how much shorter a step would be if dispatch and combine cost nothing.

It bounds what any choice of dispatcher can save, so it is the first thing to know; below the practical threshold there
is nothing to choose. The exposed share is time in which the exchange runs and no computing kernel does, over the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.errors import UsageError

if TYPE_CHECKING:
    from moe_dispatch.evidence.record import RunRecord

PRACTICAL_THRESHOLD = 0.02
"""Relative difference below which two dispatchers count as tied (the default of `select` and `compare`)."""

_UNKNOWN = (
    "unknown: measure the exposed share of dispatch and combine before anything else is tuned. Profile a few steady "
    "steps with Nsight Systems, export them to SQLite, and read them with the log: `moe-dispatch ingest LOG --nsys "
    "PROFILE.sqlite --store STORE`, then advise again with `--record STORE/RUN`"
)


class Ceiling(BaseModel):
    """What a dispatcher of no cost would save.

    Fields:
        share: exposed share of the step, 0 to 1; None when unknown.
        basis: where it comes from.
        speedup: step time now over step time without the exposed exchange; None when unknown.
        worth_choosing: whether more than the practical threshold can be gained; None when unknown.
        statement: for a person.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float | None
    basis: Literal["given", "record", "unknown"]
    speedup: float | None
    worth_choosing: bool | None
    statement: str


def ceiling(share: float | None, basis: Literal["given", "record"] = "given", detail: str = "") -> Ceiling:
    """The ceiling that follows from an exposed share.

    Args:
        share: None when it is not known.
        detail: where it was read, for the statement.

    Raises:
        UsageError: not a share from 0 up to, but without, 1.
    """
    if share is None:
        return Ceiling(
            share=None,
            basis="unknown",
            speedup=None,
            worth_choosing=None,
            statement=_UNKNOWN,
        )
    if not 0 <= share < 1:
        raise UsageError(
            f"exposed share {share} must be at least 0 and below 1",
            "give the part of the step in which only dispatch or combine runs: 0.2 means twenty percent",
        )
    return Ceiling(
        share=share,
        basis=basis,
        speedup=1 / (1 - share),
        worth_choosing=share >= PRACTICAL_THRESHOLD,
        statement=_statement(share) + (f" ({detail})" if detail else ""),
    )


def ceiling_of_record(record: RunRecord) -> Ceiling:
    """The ceiling that a profiled training run shows.

    Raises:
        UsageError: the record holds no profile.
    """
    exposed = record.training.exposed if record.training is not None else None
    if exposed is None:
        raise UsageError(
            f"record {record.run_id} holds no exposed share of communication",
            "ingest the run together with its profile, or give --exposed-share",
        )
    detail = f"record {record.run_id}, {record.choice.label}, worst device"
    if exposed.ambiguous:
        detail += "; an upper bound, as its kernels may serve other traffic too"
    return ceiling(min(exposed.share, 0.999999), "record", detail)


def _statement(share: float) -> str:
    if share < PRACTICAL_THRESHOLD:
        return (
            f"{share:.1%} of the step: even a dispatcher of no cost would save less than the {PRACTICAL_THRESHOLD:.0%} "
            "that count as a difference. Stop here and keep the baseline"
        )
    text = (
        f"{share:.1%} of the step, a speed-up of {1 / (1 - share):.2f}, if dispatch and combine cost nothing; "
        f"one that halves them saves {share / 2:.1%}"
    )
    if share / 2 < PRACTICAL_THRESHOLD:
        text += f", less than the {PRACTICAL_THRESHOLD:.0%} that count as a difference: hardly worth it"
    return text
