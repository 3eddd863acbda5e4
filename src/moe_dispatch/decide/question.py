"""Which records answer the question: the stage that decides, the level, the routing, and the skewed repetition.

A screen chooses knobs and a later stage decides, so that no arm is judged on the runs that chose it; a result for the
exchange alone can reverse inside the layer, so the layer decides where both were measured, and training runs over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide.contract_table import TRAINING_LEVEL
from moe_dispatch.evidence.record import Model, RunRecord, RunStatus

_STAGES = ("training", "confirm", "decide")
_LAST = "screen"
_APART = ("gate", "skew")
PREFERRED_LEVEL = "layer"
PREFERRED_ROUTING = "force_balanced"


class Question(Model):
    """Records sorted by the part they play.

    Fields:
        main: `ok` records that decide.
        skew: `ok` records of the same arms under other routings.
        others: every other record; their attempts without timing are shown.
        stage: stage of `main`, empty when nothing ended `ok`.
        screened: choices of each dispatcher in the screen, by label; more than one means that knobs were tuned there.
    """

    main: tuple[RunRecord, ...]
    skew: tuple[RunRecord, ...]
    others: tuple[RunRecord, ...]
    stage: str
    screened: dict[str, tuple[str, ...]]


def pose(records: Sequence[RunRecord], routing: str | None = None) -> Question:
    """Sort records.

    Args:
        routing: canonical routing of the main comparison; None takes `force_balanced`, else the most frequent one.

    Raises:
        UsageError: a routing that no record tried. One that was tried without success leaves `main` empty.
    """
    ok = [record for record in records if record.status is RunStatus.OK]
    stage = _deciding_stage(ok)
    candidates = [record for record in ok if record.stage == stage]
    main = _keep_axis(candidates, _level, PREFERRED_LEVEL)
    level = main
    measured = {str(_routing(record)) for record in level}
    lone = len({record.choice.label for record in level}) == 1
    if lone and routing is None and {_level(record) for record in level} == {TRAINING_LEVEL}:
        # Training runs of one arm are compared with each other: the contract check names what keeps them apart.
        main = level
    elif routing is None or routing in measured:
        main = _keep_axis(level, _routing, routing or PREFERRED_ROUTING)
    elif not level or any(str(_routing(record)) == routing for record in records):
        main = []
    else:
        raise UsageError(f"routing {routing!r} was not measured", f"measured: {', '.join(sorted(measured))}")
    chosen = {record.run_id for record in main}
    levels = {record.contract.measure.get("level") for record in main}
    arms = {record.choice.label for record in main}
    skew = [record for record in level if record.run_id not in chosen]
    skew += [
        r for r in ok if r.stage == "skew" and r.choice.label in arms and r.contract.measure.get("level") in levels
    ]
    used = chosen | {record.run_id for record in skew}
    screened: dict[str, set[str]] = {}
    for record in records:
        if record.stage == _LAST:
            screened.setdefault(record.choice.dispatcher, set()).add(record.choice.label)
    return Question(
        main=tuple(main),
        skew=tuple(skew),
        others=tuple(record for record in records if record.run_id not in used),
        stage=stage,
        screened={name: tuple(sorted(labels)) for name, labels in sorted(screened.items())},
    )


def _routing(record: RunRecord) -> object:
    return record.contract.workload.get("routing")


def _level(record: RunRecord) -> object:
    return record.contract.measure.get("level")


def _deciding_stage(ok: Sequence[RunRecord]) -> str:
    """The last stage that has a valid timing; one arm there is not made up for by two in an earlier one."""
    stages = {record.stage for record in ok} - set(_APART)
    free = sorted(stages - {*_STAGES, _LAST})
    return next((stage for stage in (*_STAGES, *free, _LAST) if stage in stages), "")


def _keep_axis(
    records: Sequence[RunRecord], value_of: Callable[[RunRecord], object], preferred: object
) -> list[RunRecord]:
    """Records with one value of an axis, and those of arms that never ran with it (the contract check names them)."""
    values = Counter(str(value_of(record)) for record in records)
    if not values:
        return []
    wanted = str(preferred) if str(preferred) in values else values.most_common(1)[0][0]
    arms = {record.choice.label for record in records if str(value_of(record)) == wanted}
    return [record for record in records if str(value_of(record)) == wanted or record.choice.label not in arms]
