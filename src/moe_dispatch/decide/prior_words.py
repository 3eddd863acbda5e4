"""What the guide's order is worth for one situation, in words that follow from the counts."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from moe_dispatch.decide.prior import MIN_CASES, PriorCase, PriorScore, ep_class, network, score
from moe_dispatch.evidence.closest import family_of
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

OFTEN_RIGHT, OFTEN_WRONG = 0.8, 0.5


class Confidence(BaseModel):
    """How far the order of candidates can be trusted.

    Fields:
        word: `untested` (too few cases), `low` (right in less than half), `modest`, or `fair` (right in four of five).
        statement: for a person, with the counts.
        hits, cases: of the group that the word rests on; group: its name.
        counts: the same for each group that this situation belongs to, widest last.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: str
    statement: str
    group: str
    hits: int
    cases: int
    counts: tuple[str, ...]


def confidence(workload: Workload, site: Site, cases: Sequence[PriorCase]) -> Confidence:
    """Words for this situation: from the narrowest group with enough cases, on pairs that no rule rests on first."""
    if site.device == "cpu":
        text = "no published pair was taken on a CPU: measure"
        return Confidence(word="untested", statement=text, group="cpu", hits=0, cases=0, counts=())
    scores = _groups(workload, site, cases)
    chosen = next((one for one in scores if one.cases >= MIN_CASES), scores[-1])
    hits, total = chosen.hits, chosen.cases
    counts = tuple(_count(one) for one in scores)
    if total < MIN_CASES:
        word = "untested"
        text = f"only {total} published pairs of {chosen.label} can be judged, too few to say what this order is worth"
        return Confidence(word=word, statement=text, group=chosen.label, hits=hits, cases=total, counts=counts)
    rate = min(hits / total, chosen.fresh_hits / chosen.fresh if chosen.fresh >= MIN_CASES else 1.0)
    word = "fair" if rate >= OFTEN_RIGHT else "modest" if rate >= OFTEN_WRONG else "low"
    text = f"the guide's first arm was the faster one in {hits} of {total} published pairs of {chosen.label}"
    if chosen.fresh == 0:
        text += "; its rules rest on these very pairs, so that this is no test"
        word = "untested"
    elif chosen.fresh < total:
        text += f", and in {chosen.fresh_hits} of the {chosen.fresh} that none of its rules rests on"
    ending = {
        "fair": "a start, no verdict: measure",
        "modest": "little better than a coin: measure",
        "low": "more often wrong than right: measure, and do not skip the baseline",
        "untested": "measure",
    }[word]
    return Confidence(
        word=word, statement=f"{text}; {ending}", group=chosen.label, hits=hits, cases=total, counts=counts
    )


def _groups(workload: Workload, site: Site, cases: Sequence[PriorCase]) -> list[PriorScore]:
    """Scores of the groups that this situation belongs to, narrowest first."""
    hardware, size, family = site.gpu, ep_class(workload.layout.ep), family_of(workload.model.name)
    fabric = network(site.fabric)
    over = f" over {fabric}" if fabric else ""

    def alike(case: PriorCase) -> bool:
        return (case.ep_class, case.network) == (size, fabric)

    narrow = [
        score(
            cases,
            f"{family} on {hardware} with {size} EP{over}",
            lambda case: alike(case) and (case.hardware, case.family) == (hardware, family),
        ),
        score(cases, f"{hardware} with {size} EP{over}", lambda case: alike(case) and case.hardware == hardware),
    ]
    wide = [score(cases, f"any hardware with {size} EP{over}", alike), score(cases, "all kinds")]
    return [*narrow, *wide] if hardware is not None else wide


def _count(one: PriorScore) -> str:
    text = f"{one.label}: {one.hits} of {one.cases}"
    return text + (f" ({one.fresh_hits} of {one.fresh} not in sample)" if one.fresh < one.cases else "")
