"""Own records in the terms in which published evidence is searched; figures stay with what they are figures of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from moe_dispatch.evidence.published.rows import Settings
from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.site.hardware import hardware_of_device

_NUMBERS = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "global_batch", "seq_length")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRow(Settings):
    """One record of a store.

    Fields:
        status: as the record has it. dispatcher, choice: what was asked for, without and with its knobs.
        level: what was timed (`exchange`, `layer`, `training`, ...); empty where unknown.
        latency_us: median over the timed iterations of the maximum over ranks; None unless the status is `ok`.
        reason: why it carries no figure.
    """

    kind: ClassVar[str] = "own"

    session: str
    stage: str
    status: str
    dispatcher: str
    choice: str
    level: str = ""
    latency_us: float | None = None
    iterations: int = 0
    reason: str = ""

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """The one under test."""
        return (self.dispatcher,)


def own_row(record: RunRecord, store: Path) -> OwnRow:
    """A record as a row; contract fields of an unexpected type count as unknown."""
    workload, site = record.contract.workload, record.contract.site
    samples = [each.latency_us["total"] for each in record.performance.iterations] if record.performance else []
    routing = _text(workload.get("routing"))
    numbers: dict[str, Any] = {name: _number(workload.get(name)) for name in _NUMBERS}
    return OwnRow(
        id=record.run_id,
        session=record.session,
        stage=record.stage,
        status=record.status.value,
        dispatcher=record.choice.dispatcher,
        choice=record.choice.label,
        level=_text(record.contract.measure.get("level")),
        latency_us=median(samples) if samples and record.status is RunStatus.OK else None,
        iterations=len(samples),
        labels=record.labels,
        reason=record.reason,
        source=str(store / record.run_id),
        date=record.provenance.created.date().isoformat(),
        date_basis="run",
        model=_text(workload.get("model")),
        hardware=_hardware(site),
        precision=_text(workload.get("precision")) or None,
        routing="force_balanced" if routing == "force_balanced" else "dropless" if routing else "unknown",
        gpus=_number(workload.get("world")),
        **numbers,
    )


def _hardware(site: dict[str, Any]) -> str:
    named = _text(site.get("device_name")) or _text(site.get("gpu"))
    entry = hardware_of_device(named) if named else None
    return entry.name if entry else _text(site.get("device"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
