"""What to measure next: what is unknown and would change the advice most, first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from moe_dispatch.decide.advice import CandidateAdvice
from moe_dispatch.decide.advice_evidence import Claims
from moe_dispatch.decide.ceiling import Ceiling
from moe_dispatch.decide.guide_condition import Situation
from moe_dispatch.decide.guide_rules import BASELINE


def next_measurements(
    known: Ceiling, advised: Sequence[CandidateAdvice], claims: Claims, at: Situation, packages: Collection[str]
) -> tuple[str, ...]:
    """One line each, most informative first; a ceiling below the threshold ends the list.

    Args:
        packages: backends that must be installed.
    """
    if known.worth_choosing is False:
        return (f"nothing about dispatchers: keep {BASELINE}, and look for the time elsewhere in the profile",)
    lines = []
    if known.share is None:
        lines.append("the exposed share of dispatch and combine: it bounds everything below")
    if at.domains != 1 and at.site.fabric == "unknown" and at.site.device == "cuda":
        lines.append("which network joins the nodes: name it with the site, as the order depends on it")
    ready = [one for one in advised if one.candidate.included and one.name != BASELINE and not one.blocked]
    ungated = [one.name for one in ready if one.candidate.gate == "not_gated" and one.name in packages]
    if ungated:
        lines.append(f"whether {', '.join(ungated)} import and move tokens in the job's container")
    blocked = [one.name for one in advised if one.blocked and one.name in packages]
    if blocked and not any(one.name in packages for one in ready):
        lines.append(f"nothing with {', '.join(blocked)} before the layout or the machine is another, as said above")
    arms = _arms(ready, claims)
    if arms:
        why = ": published claims for this model here disagree" if claims.conflict else ""
        lines.append(f"{BASELINE} against {' and '.join(one.name for one in arms)}, on one stack{why}")
    for one in arms:
        lines += [
            f"{one.name}: {knob.knob} over {', '.join(map(str, knob.sweep))}, before it is compared"
            for knob in one.knobs
            if len(knob.sweep) > 1
        ]
    return (*lines, "the winner once more with natural routing")


def _arms(ready: Sequence[CandidateAdvice], claims: Claims) -> list[CandidateAdvice]:
    """The two to compare with the baseline first: what sources favour here, then the order of the guide."""
    return sorted(ready, key=lambda one: one.name not in claims.favoured)[:2]
