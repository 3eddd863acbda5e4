"""`moe-dispatch evidence`: search published measurements, pairs and recipes, with own records beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moe_dispatch.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from moe_dispatch.evidence.browse import Answer, Question
    from moe_dispatch.evidence.closest import EvidenceQuery

_SHOWN = 20
_LOG_WIDTH = 240
"""Ids, dispatchers with their build and labels are long; a terminal keeps its own width."""


def evidence(
    name: Annotated[str | None, typer.Argument(metavar="ID", help="Show this row (or own record) in full.")] = None,
    model: Annotated[str | None, typer.Option(metavar="M", help="Only this model, or this family.")] = None,
    hardware: Annotated[str | None, typer.Option(metavar="H", help="Only this accelerator.")] = None,
    dispatcher: Annotated[str | None, typer.Option(metavar="D", help="Only rows about this dispatcher.")] = None,
    ep: Annotated[int | None, typer.Option(metavar="N", help="Only this expert parallel size.")] = None,
    precision: Annotated[str | None, typer.Option(metavar="P", help="bf16, fp8 (any recipe), fp8_mx, nvfp4.")] = None,
    since: Annotated[str | None, typer.Option(metavar="DATE", help="Only rows dated then or later.")] = None,
    stated: Annotated[bool, typer.Option("--stated", help="Leave out inferred dispatchers.")] = False,
    kind: Annotated[str | None, typer.Option(metavar="K", help="training, ab, knob, recipe, micro or own.")] = None,
    own: Annotated[Path | None, typer.Option(metavar="STORE", help="Show the records of this store too.")] = None,
    sort: Annotated[str | None, typer.Option(metavar="KEY", help="Sort one kind; -KEY for highest first.")] = None,
    closest: Annotated[
        str | None, typer.Option(metavar="WORKLOAD", help="Nearest rows to this workload, with how they differ.")
    ] = None,
    site: Annotated[str | None, typer.Option(metavar="S", help="With --closest: declared site, as h100.")] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="With --closest: nodes of the site.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Rows of each kind (default 20; 0: all).")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the matching rows as CSV.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Search published measurements, pairs and recipes; own records beside them, never in one ranking."""
    from moe_dispatch.evidence.browse import Question, browse

    words: dict[str, Any] = {"model": model, "hardware": hardware, "dispatcher": dispatcher, "ep": ep}
    words |= {"precision": precision, "since": since, "stated": stated}
    options = {**words, "kind": kind, "sort": sort, "closest": closest, "site": site, "nodes": nodes, "csv": csv}
    _refuse_contradictions(name, {key: value for key, value in options.items() if _is_given(value)}, limit)
    if name is not None:
        return _show_one(name, own, as_json)
    query = None
    if closest is not None:
        query = _query(closest, ep, precision, site, nodes)
        words |= {"ep": None, "precision": None}
    if not any(_is_given(value) for value in (*words.values(), kind, own, sort, query, csv, limit)):
        return _overview(as_json)
    question = Question(words=words, kind=kind, own=own, sort=sort, query=query)
    answer = browse(question)
    if csv is not None:
        _write_csv(answer, csv)
    if as_json:
        _print_answer(answer, limit or 0)
    else:
        _show(question, answer, _SHOWN if limit is None else limit)
        if csv is not None:
            print(f"{sum(len(section.rows) for section in answer.sections)} rows written to {csv}")
    return 0


def _is_given(value: object) -> bool:
    """Whether an option was given; 0 is a value, to be refused where it is one that cannot be meant."""
    return value is not None and value is not False


def _refuse_contradictions(name: str | None, given: dict[str, Any], limit: int | None) -> None:
    from moe_dispatch.core.errors import UsageError

    def refuse(message: str, fix: str) -> None:
        raise UsageError(message, fix)

    if limit is not None and limit < 0:
        refuse(f"--limit {limit} must be 0 or more", "0 shows all")
    if name is not None and given:
        refuse(f"an id names one row; --{next(iter(given))} does not go with it", "leave one of the two out")
    if "closest" in given:
        instead = {"model": "the workload names the model", "hardware": "give --site", "sort": "distance is the order"}
        for option, fix in instead.items():
            if option in given:
                refuse(f"--{option} does not go with --closest", fix)
        if given.get("kind") == "micro":
            refuse("--kind micro does not go with --closest", "micro-benchmarks have no workload to be near to")
    for option in ("site", "nodes"):
        if option in given and "closest" not in given:
            refuse(f"--{option} describes where a workload runs", "add --closest WORKLOAD, or filter by --hardware")
    if "nodes" in given and "site" not in given:
        refuse("--nodes counts the nodes of a site", "add --site")
    if given.get("nodes", 1) < 1:
        refuse(f"--nodes {given['nodes']} must be at least 1", "leave it out for one node")


def _query(text: str, ep: int | None, precision: str | None, site: str | None, nodes: int | None) -> EvidenceQuery:
    from moe_dispatch.evidence.closest import query_of
    from moe_dispatch.evidence.search import training_precision
    from moe_dispatch.site.hardware import declared_site
    from moe_dispatch.workload.workload import load_workload

    exact = None if precision is None else training_precision(precision)
    workload = load_workload(text, ep=ep)
    where = None if site is None else declared_site(site, 1 if nodes is None else nodes)
    return query_of(workload, where, exact)


def _overview(as_json: bool) -> int:
    """What there is, before any question."""
    from moe_dispatch.evidence.search import overview

    kinds, collected = overview()
    if as_json:
        print_json({"collected": collected, "kinds": [each.__dict__ for each in kinds]})
        return 0
    print(f"Published evidence, sources read up to {collected}")
    rows = [
        (each.kind, each.rows, each.with_findings, ", ".join(each.dispatchers), ", ".join(each.hardware))
        for each in kinds
    ]
    print_table(("kind", "rows", "with findings", "dispatchers", "hardware"), rows)
    print(
        "Ask with --model, --hardware, --kind ... or --closest WORKLOAD --ep N --site S; `evidence ID` shows one row."
    )
    return 0


def _show_one(name: str, own: Path | None, as_json: bool) -> int:
    from moe_dispatch.evidence.browse import find_own
    from moe_dispatch.evidence.search import LOADERS, find_row
    from moe_dispatch.report.evidence_export import document
    from moe_dispatch.report.evidence_tables import details_of

    rows = [*(row for load in LOADERS.values() for row in load()), *(find_own(own) if own else ())]
    row = find_row(rows, name)
    if as_json:
        print_json(document(row))
    else:
        print_table(("field", "value"), details_of(row))
    return 0


def _show(question: Question, answer: Answer, limit: int) -> None:
    from moe_dispatch.report.evidence_tables import MARKS, TITLES, closest_table, table_of

    for section in answer.sections:
        total = len(section.rows)
        shown = total if limit == 0 else min(limit, total)
        print(f"{TITLES[section.kind]}: {f'{shown} of {total}' if shown < total else total}")
        matches = section.matches[:shown]
        table = closest_table(matches) if question.query else table_of(section.kind, section.rows[:shown])
        if table.shared:
            print("all: " + ", ".join(f"{heading} {value}" for heading, value in table.shared.items()))
        print_table(table.headings, table.rows, _LOG_WIDTH)
        if section.undated:
            print(f"{section.undated} more have no date.")
    if answer.sections:
        print(MARKS)
    else:
        print("No evidence matches all conditions.")
        for option, count in answer.without.items():
            print(f"  without {option}: {count} rows")
        if not any(answer.without.values()):
            print("  more than one of them has to go; --closest WORKLOAD finds what is nearest instead")
    for finding in answer.findings:
        print(f"{finding.severity.value}: {finding.message}")


def _print_answer(answer: Answer, limit: int) -> None:
    from moe_dispatch.report.evidence_export import document

    sections: dict[str, Any] = {}
    for section in answer.sections:
        documents = [document(row) for row in section.rows[: limit or None]]
        for each, match in zip(documents, section.matches, strict=False):
            each["distance"] = match.distance
            each["differences"] = [
                {"component": one.component, "ours": one.ours, "theirs": one.theirs, "adds": one.adds}
                for one in match.differences
            ]
        sections[section.kind] = {"total": len(section.rows), "undated": section.undated, "rows": documents}
    print_json({"sections": sections, "without": answer.without, "findings": answer.findings})


def _write_csv(answer: Answer, path: Path) -> None:
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.report.evidence_export import csv_text

    text = csv_text(row for section in answer.sections for row in section.rows)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--csv {path} cannot be written: {error.strerror}", "name a file that you may write"
        ) from None
