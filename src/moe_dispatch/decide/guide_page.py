"""The selection guide as a page: `python -m moe_dispatch.decide.guide_page [FILE]` makes docs/guide.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from moe_dispatch.decide.guide_condition import STAGES, Condition
from moe_dispatch.decide.guide_explain import part_and_effect
from moe_dispatch.decide.guide_practice import (
    PracticeTopic,
    load_combinations,
    load_knobs,
    load_practice,
    load_variables,
)
from moe_dispatch.decide.guide_rules import BASELINE, Guidance, Rule, Topic, load_rules

_INTRO = f"""\
# The selection guide

Generated from the data by `python -m moe_dispatch.decide.guide_page docs/guide.md`; edit the YAML, not this page.

What `advise` and `select` start from: which dispatchers are worth measuring where, in which order, and why. A rule
orders or leaves out candidates for a stated reason, or remarks on one. None names a winner, and `{BASELINE}`, the
baseline, is beyond their reach. Order of authority: measured here, then a matched published A/B, then a recipe in
force, then this guide. How often its first candidate was the faster arm of a published pair:
`python benchmarks/prior_vs_measured.py`.

`moe-dispatch advise WORKLOAD --site S --explain RULE` says whether a rule holds for a workload and on what it rests.
"""

_TOPICS: dict[str, str] = {
    "availability": "Availability",
    "backend": "What a dispatcher can do",
    "hardware": "Hardware",
    "ep": "Expert parallel size",
    "family": "Model family",
    "fabric": "Fabric and domains",
    "precision": "Precision",
    "memory": "Memory",
    "stage": "Stage",
    "path": "The path",
    "routing": "Routing",
    "interaction": "Interactions",
    "pitfall": "Pitfalls, and what guards against each",
}


def guide_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_INTRO, *_rules(), *_practice(), *_knobs(), *_variables(), *_combinations()]) + "\n"


def _rules() -> Iterator[str]:
    yield "## Candidates\n"
    yield "The first rule of this list that tells two candidates apart decides between them.\n"
    yield from _table(
        ("rule", "holds for", "order"),
        ((f"`{rule.id}`", _condition(rule.when), _order(rule)) for rule in load_rules() if rule.effect == "order"),
    )
    for topic in get_args(Topic):
        yield f"\n### {_TOPICS[topic]}\n"
        for rule in load_rules():
            if rule.topic == topic:
                yield _entry(rule, part_and_effect(rule)[1])


def _practice() -> Iterator[str]:
    yield "\n## Practice\n"
    for topic in get_args(PracticeTopic):
        yield f"### {_TOPICS[topic]}\n"
        entries = [one for one in load_practice() if one.topic == topic]
        for stage in STAGES if topic == "path" else (None,):
            if stage is not None:
                yield f"#### {stage.capitalize()}\n"
            for one in entries:
                if one.stage == stage:
                    commands = "".join(f"; `{command}`" for command in one.commands)
                    yield _entry(one, f"guarded by {one.guard}{commands}")
        yield ""


def _knobs() -> Iterator[str]:
    yield "## Knobs\n"
    yield from _table(
        ("dispatcher", "knob", "defaults", "note", "rule"),
        (
            (
                one.backend,
                f"`{one.knob}`",
                "; ".join(f"{each.value} ({each.label}, {each.who})" for each in one.defaults),
                one.text,
                f"`{one.id}`",
            )
            for one in load_knobs()
        ),
    )


def _variables() -> Iterator[str]:
    yield "\n## Environment\n"
    yield from _table(
        ("variable", "value", "how", "for", "holds for", "why", "rule"),
        (
            (
                f"`{one.name}`",
                f"`{one.value}`" if one.value else "",
                one.how,
                ", ".join(one.backends) or "every arm",
                _condition(one.when),
                one.text,
                f"`{one.id}`",
            )
            for one in load_variables()
        ),
    )


def _combinations() -> Iterator[str]:
    yield "\n## Combinations\n"
    yield from _table(
        ("feature", "with", "verdict", "holds for", "what", "rule"),
        (
            (
                one.feature,
                ", ".join(one.backends) or "every dispatcher",
                one.verdict,
                _condition(one.when),
                one.text,
                f"`{one.id}`",
            )
            for one in load_combinations()
        ),
    )


def _entry(one: Guidance, effect: str) -> str:
    return (
        f"- **`{one.id}`** ({one.date}; {_condition(one.when)}): {one.text}. *Effect:* {effect}. "
        f"*Sources:* {'; '.join(one.sources)}. *Refuted by:* {one.refuted_by}."
    )


def _order(rule: Rule) -> str:
    return ", ".join(rule.order) + (f"; expects {BASELINE} to hold its own" if rule.baseline_hard_to_beat else "")


def _condition(when: Condition) -> str:
    given = when.model_dump(exclude_none=True)
    parts = [
        f"{name.replace('_', ' ')} {', '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in given.items()
    ]
    return "; ".join(parts) or "everywhere"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def main(arguments: list[str]) -> int:
    """Print the page, or write it to the file named by the only argument."""
    if arguments:
        Path(arguments[0]).write_text(guide_page(), encoding="utf-8")
    else:
        sys.stdout.write(guide_page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
