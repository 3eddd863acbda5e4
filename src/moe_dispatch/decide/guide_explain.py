"""One piece of the guide, explained: what it says and rests on, what would refute it, and whether it holds here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide.guide_condition import Situation
from moe_dispatch.decide.guide_practice import (
    Combination,
    KnobGuide,
    Practice,
    Variable,
    load_combinations,
    load_knobs,
    load_practice,
    load_variables,
)
from moe_dispatch.decide.guide_rules import BASELINE, Guidance, Rule, load_rules


class Explained(BaseModel):
    """One piece of guidance in a situation, or in none.

    Fields:
        part: of the guide. effect: what it does. condition: as the guide has it.
        holds: None without a situation. dispatchers: for which it holds there.
        failing: conditions that do not hold there, for the dispatcher that comes closest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    part: str
    effect: str
    condition: dict[str, object]
    text: str
    sources: tuple[str, ...]
    date: str
    refuted_by: str
    holds: bool | None = None
    dispatchers: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()


@cache
def all_guidance() -> dict[str, Guidance]:
    """Everything in the guide by id."""
    parts: tuple[tuple[Guidance, ...], ...] = (
        load_rules(),
        load_practice(),
        load_knobs(),
        load_variables(),
        load_combinations(),
    )
    return {one.id: one for part in parts for one in part}


def find_guidance(name: str) -> Guidance:
    """A piece of the guide by id.

    Raises:
        UsageError: no such id; names close ones.
    """
    known = all_guidance()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
    fix = f"did you mean {', '.join(close)}?" if close else "docs/guide.md lists all rules with their ids"
    raise UsageError(f"the guide has no rule {name!r}", fix)


def explain(one: Guidance, situations: Sequence[Situation] = ()) -> Explained:
    """Explain it, with its text filled when there is a situation.

    Args:
        situations: of the dispatchers that it speaks about, so that conditions on them can be judged.
    """
    part, effect = part_and_effect(one)
    holding = [at for at in situations if one.when.holds(at)]
    nearest = min(situations, key=lambda at: len(one.when.failing(at)), default=None)
    return Explained(
        id=one.id,
        part=part,
        effect=effect,
        condition=one.when.model_dump(exclude_none=True),
        text=nearest.fill(one.text) if nearest is not None else one.text,
        sources=one.sources,
        date=one.date.isoformat(),
        refuted_by=one.refuted_by,
        holds=bool(holding) if situations else None,
        dispatchers=tuple(at.spec.name for at in holding),
        failing=() if holding or nearest is None else one.when.failing(nearest),
    )


def backends_of(one: Guidance) -> tuple[str, ...]:
    """Backends that it is about; empty when it is about every one."""
    if isinstance(one, KnobGuide):
        return (one.backend,)
    if isinstance(one, Rule):
        return one.order or one.backends
    return one.backends if isinstance(one, Variable | Combination) else ()


def part_and_effect(one: Guidance) -> tuple[str, str]:
    """Part of the guide, and what the entry does, in words."""
    if isinstance(one, Rule):
        about = ", ".join(one.backends) or "any dispatcher"
        does = {
            "order": f"orders candidates: {', '.join(one.order)} first",
            "exclude": f"leaves out {about}",
            "note": f"a remark on {about}",
        }[one.effect]
        expected = f"; {BASELINE} is hard to beat" if one.baseline_hard_to_beat else ""
        return f"candidates ({one.topic})", does + expected
    if isinstance(one, Practice):
        return f"practice ({one.topic})", f"a step of {one.stage}" if one.stage else "a remark on every dispatcher"
    if isinstance(one, KnobGuide):
        defaults = "; ".join(f"{each.value} {each.label}" for each in one.defaults)
        return "knobs", f"{one.backend} {one.knob}: {defaults}"
    if isinstance(one, Variable):
        value = f"{one.name}={one.value}" if one.value else one.name
        return "environment", f"{one.how} {value} for {', '.join(one.backends) or 'every arm'}"
    assert isinstance(one, Combination)
    return "combinations", f"{one.feature} with {', '.join(one.backends) or 'any dispatcher'}: {one.verdict}"
