"""Advice in a terminal: the ceiling first, then candidates, what comes next, how to select them, evidence and the path.

Prose fits 80 columns; settings to copy are not wrapped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moe_dispatch.core.finding import Severity
from moe_dispatch.decide.advice import Advice, CandidateAdvice, CombinationAdvice, KnobAdvice, Remark, Step
from moe_dispatch.decide.guide_explain import Explained
from moe_dispatch.report.advice_evidence import show_evidence
from moe_dispatch.report.advice_parts import Page

_HOW = {
    "set": "",
    "own": "set it",
    "unset": "leave it unset",
    "build": "at build time",
    "equal": "the same in every arm",
}
_VERDICTS = {"legal": "fine", "illegal": "NOT LEGAL", "needs": "needs"}


def show_advice(advice: Advice, console: Console) -> None:
    """Print all of it."""
    page = Page(console.width)
    workload = advice.workload
    page.prose(
        f"Advice for {workload['model']}, EP {workload['ep']} of {workload['world']} ranks, TP {workload['tp']}, "
        f"PP {workload['pp']}, {workload['precision']}, on {advice.site_summary}."
    )
    page.prose("Nothing was run, and nothing here is a verdict: candidates, not winners.")
    page.prose("Order of authority: measured here, a matched published A/B, a recipe in force, this guide.")
    page.heading("Ceiling: what a dispatcher of no cost would save")
    page.bullet(advice.ceiling.statement)
    _show_candidates(advice, page)
    page.heading("Measure next")
    page.items(advice.next)
    show_evidence(advice, page)
    _show_settings(advice, page)
    _show_combinations(advice.combinations, page)
    _show_path(advice.path, page)
    for title, remarks in (
        ("Availability: what an import proves", advice.availability),
        ("Routing", advice.routing),
        ("Interactions", advice.interactions),
        ("Pitfalls, and what guards against each", advice.pitfalls),
    ):
        if remarks:
            page.heading(title)
            page.items([_remark(one) for one in remarks])
    page.line()
    page.note("`advise --explain RULE` gives sources and what would refute a rule named in [brackets].", 0)
    page.show(console)


def show_explained(one: Explained, console: Console) -> None:
    """Print one rule of the guide."""
    console.print(Text(f"{one.id}: {one.part}, of {one.date}", style="bold"))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    condition = ", ".join(f"{name} {_plain(value)}" for name, value in one.condition.items()) or "everywhere"
    grid.add_row("holds for", Text(condition))
    if one.holds is not None:
        answer = f"yes, for {', '.join(one.dispatchers)}" if one.holds else f"no: {', '.join(one.failing)}"
        grid.add_row("holds here", Text(answer))
    grid.add_row("effect", Text(one.effect))
    grid.add_row("because", Text(one.text))
    grid.add_row("sources", Text("\n".join(one.sources)))
    grid.add_row("refuted by", Text(one.refuted_by))
    console.print(grid)


def _show_candidates(advice: Advice, page: Page) -> None:
    page.heading("Candidates, in the order of the guide")
    own, shared = _shared(advice.included, lambda one: [f"{each.text} [{each.rule}]" for each in one.candidate.reasons])
    for one in advice.candidates:
        state = _state(one)
        place = f"{one.candidate.position}." if one.candidate.included else "-"
        page.line(f" {place:<3}{one.name}{f', {state}' if state else ''}", "bold")
        reasons = own[one.name] if one.candidate.included else [each.text for each in one.candidate.reasons]
        for line in (*_problems(one), *reasons):
            page.bullet(line, indent=4)
    for names, line in shared:
        page.bullet(f"{names}: {line}")
    page.bullet(f"Confidence in this order: {advice.confidence.word}. {_capital(advice.confidence.statement)}")


def _state(one: CandidateAdvice) -> str:
    if not one.candidate.included:
        return "left out"
    if one.blocked:
        return "does not run here as it is"
    return "" if one.candidate.gate == "not_gated" else one.candidate.gate


def _problems(one: CandidateAdvice) -> list[str]:
    return [
        f"{each.severity.value}: {each.message}; {'; '.join(each.advice[:1])} [{each.id}]"
        for each in one.findings
        if each.severity is not Severity.INFO
    ]


def _show_settings(advice: Advice, page: Page) -> None:
    page.heading(f"Settings (Megatron-Core {advice.core_version})")
    for variable in advice.environment:
        page.bullet(f"every arm: {_variable(variable.name, variable.value, variable.how)}: {variable.text}")
    notes, shared = _shared(advice.included, lambda one: one.configuration.notes if one.configuration else ())
    forced: dict[str, None] = {}
    for one in advice.included:
        page.line(f" {one.name}", "bold")
        page.items([_knob_text(knob) for knob in one.knobs], indent=4)
        page.items(
            [f"{_variable(each.name, each.value, each.how)}: {each.text}" for each in one.environment],
            indent=4,
        )
        if one.configuration is None:
            page.bullet(one.not_configured, indent=4)
            continue
        page.settings("Megatron-LM", one.configuration.megatron_lm_args)
        page.settings("Bridge", one.configuration.bridge_overrides)
        page.settings("Bridge harness", one.configuration.bridge_harness_flags)
        page.items(notes[one.name], indent=4)
        emitted = one.configuration
        forced |= dict.fromkeys((*emitted.benchmark_only_args, *emitted.benchmark_only_overrides))
    for names, line in shared:
        page.bullet(f"{names}: {line}")
    page.settings("Benchmarks only, in every arm", tuple(forced))


def _knob_text(knob: KnobAdvice) -> str:
    parts = [f"{knob.knob}: {'the library decides' if knob.here is None else f'default {knob.here} here'}"]
    if len(knob.defaults) > 1:
        parts.append("defaults " + ", ".join(f"{one.value} ({one.label})" for one in knob.defaults))
    if len(knob.sweep) > 1:
        parts.append(f"sweep {', '.join(map(str, knob.sweep))}")
    if not knob.megatron:
        parts.append("of this package only, Megatron has no such knob")
    return "; ".join([*parts, knob.text] if knob.text else parts)


def _variable(name: str, value: str, how: str) -> str:
    said = f" ({_HOW[how]})" if _HOW[how] else ""
    return f"{name}={value}{said}" if value else f"{name}{said}"


def _show_combinations(combinations: Sequence[CombinationAdvice], page: Page) -> None:
    page.heading("Features with these dispatchers")
    for one in sorted(combinations, key=lambda each: each.feature):
        about = ", ".join(one.dispatchers) or "all"
        page.bullet(f"{one.feature}, {about}: {_VERDICTS[one.verdict]}: {one.text}")


def _show_path(path: Iterable[Step], page: Page) -> None:
    page.heading("Path: bring-up, profile, tuned")
    for number, step in enumerate(path, 1):
        page.bullet(f"{number}. {step.stage}{' (now)' if step.now else ''}: {step.text}")
        for command in step.commands:
            page.note(command, 5, wrap=False)


def _remark(one: Remark) -> str:
    return f"{one.text}. Guard: {one.guard} [{one.rule}]"


def _shared(
    candidates: Sequence[CandidateAdvice], lines_of: Callable[[CandidateAdvice], Iterable[str]]
) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Lines of each candidate alone, and what several share with their names, so that nothing is said twice.

    Two lines are the same when they differ in the dispatcher's own name only.
    """
    lines = {one.name: list(lines_of(one)) for one in candidates}
    every = [line for each in lines.values() for line in each]

    def key(name: str, line: str) -> str:
        return line if every.count(line) > 1 else line.replace(name, "it")

    about: dict[str, list[str]] = defaultdict(list)
    for name, each in lines.items():
        for line in each:
            about[key(name, line)].append(name)
    own = {name: [line for line in each if len(about[key(name, line)]) == 1] for name, each in lines.items()}
    shared = [(names, line) for line, names in about.items() if len(names) > 1]
    return own, [("all" if len(names) == len(lines) else ", ".join(names), line) for names, line in shared]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
