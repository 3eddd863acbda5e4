"""Validate everything that is shipped: `python -m moe_dispatch.evidence.published.validate [--write] [--json]`.

Three questions: does each row have the form (types, source, date, stable and unique id), do the files stand in order,
and are the findings that the rows carry exactly what the checks find now. `--write` puts the files in order and renews
the findings; a row of wrong form is never written. Exit 0: all three hold. 1: they do not.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from moe_dispatch.evidence.published import checks, checks_between
from moe_dispatch.evidence.published.files import FILES, data_file, read_document, row_of, text_of
from moe_dispatch.evidence.published.pairs import Paired
from moe_dispatch.evidence.published.rows import Misfit, RecipeRow, Row, Settings, TrainingRow

STALE = "is not in order, or its findings are not what the checks find now: use --write"
SOURCE = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{8,40}(:\S+)?|https://\S+|document: \S.*")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What validation found.

    Fields:
        rows: by file name, with the findings that the checks give now; as they stand where a row has a wrong form.
        problems: what is wrong with the data itself; empty when it may be shipped.
        texts: by file name, what each file should hold; empty where a row has a wrong form.
    """

    rows: Mapping[str, tuple[Row, ...]]
    problems: tuple[str, ...]
    texts: Mapping[str, str]


def validate(folder: Path | None = None) -> Report:
    """Check all files of a folder, by default the shipped one.

    Raises:
        StoreError: a file cannot be read, or a row has an unknown or a missing field.
    """
    paths = {name: folder / name if folder else data_file(name) for name in FILES}
    documents = {name: read_document(path) for name, path in paths.items()}
    problems: list[str] = []
    read: dict[str, tuple[Row, ...]] = {}
    for name, row_class in FILES.items():
        problems += _form_problems(name, row_class, documents[name]["rows"], documents[name]["collected"])
        read[name] = tuple(row_of(row_class, raw, paths[name]) for raw in documents[name]["rows"])
    counts = Counter(row.id for rows in read.values() for row in rows)
    problems += [f"id {name} stands {count} times" for name, count in counts.items() if count > 1]
    if problems:
        return Report(rows=read, problems=tuple(problems), texts={})
    checked = _with_findings(read)
    texts = {name: text_of(rows, documents[name]["collected"]) for name, rows in checked.items()}
    for name, path in paths.items():
        if path.read_text(encoding="utf-8") != texts[name]:
            problems.append(f"{name} {STALE}")
    return Report(rows=checked, problems=tuple(problems), texts=texts)


def _form_problems(
    name: str, row_class: type[Row], rows: Sequence[Mapping[str, object]], collected: str
) -> Iterator[str]:
    adapter = TypeAdapter(row_class)
    for raw in rows:
        where = f"{name}: {raw.get('id')}"
        try:
            row = adapter.validate_json(json.dumps(raw))
        except ValidationError as error:
            for item in error.errors():
                yield f"{where}: {'.'.join(map(str, item['loc']))}: {item['msg']}"
            continue
        if not ID.fullmatch(row.id):
            yield f"{where}: the id may hold letters, digits and . _ + - only"
        if not SOURCE.fullmatch(row.source):
            yield f"{where}: source {row.source!r} is no owner/repo@commit:path, https address or 'document: ...'"
        for label in (row.model, row.hardware):
            if label and not NAME.fullmatch(label):
                yield f"{where}: {label!r} is not in kebab form"
        yield from (f"{where}: {problem}" for problem in _date_problems(row, collected))
        if isinstance(row, TrainingRow) and row.dispatcher_stated and row.dispatcher_inferred:
            yield f"{where}: a stated dispatcher needs no inferred one"
        if isinstance(row, TrainingRow) and bool(row.dispatcher_inferred) != bool(row.inference):
            yield f"{where}: dispatcher_inferred and inference go together"
        if isinstance(row, Settings) and (row.routing == "force_balanced") != ("forced_balance" in row.labels):
            yield f"{where}: routing {row.routing} and the label forced_balance do not agree"


def _date_problems(row: Row, collected: str) -> Iterator[str]:
    if bool(row.date) != bool(row.date_basis):
        yield "date and date_basis go together"
    if row.date:
        text = row.date if len(row.date) > len("2026-01") else f"{row.date}-01"
        try:
            day = date.fromisoformat(text)
        except ValueError:
            yield f"date {row.date!r} is no ISO day or month"
            return
        if day > date.fromisoformat(collected):
            yield f"date {row.date} is after the day of collection, {collected}"


def _with_findings(read: Mapping[str, tuple[Row, ...]]) -> dict[str, tuple[Row, ...]]:
    training = {row.id: row for rows in read.values() for row in rows if isinstance(row, TrainingRow)}
    twice = checks_between.told_twice(row for rows in read.values() for row in rows)
    checked: dict[str, tuple[Row, ...]] = {}
    for name, rows in read.items():
        renewed = (replace(row, findings=(*_misfits(row, training), *_twice(row, twice))) for row in rows)
        checked[name] = tuple(sorted(renewed, key=lambda row: row.id))
    return checked


def _twice(row: Row, twice: Mapping[str, Misfit]) -> tuple[Misfit, ...]:
    return (twice[row.id],) if row.id in twice else ()


def _misfits(row: Row, training: Mapping[str, TrainingRow]) -> Iterator[Misfit]:
    yield from checks.check_numbers(row)
    if isinstance(row, TrainingRow | RecipeRow):
        yield from checks.check_layout(row)
    if isinstance(row, TrainingRow):
        for check in (checks.check_tokens, checks.check_flops, checks.check_peak, checks.check_memory):
            yield from check(row)
    elif isinstance(row, Paired):
        yield from checks_between.check_arms(row, training)
    elif isinstance(row, RecipeRow):
        yield from checks_between.check_recipe(row)


def main(arguments: list[str] | None = None) -> int:
    """Validate, print what does not fit, and with `--write` renew the files."""
    parser = argparse.ArgumentParser(prog="python -m moe_dispatch.evidence.published.validate", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the files in order and renew their findings")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    report = validate()
    if options.write and all(problem.endswith(STALE) for problem in report.problems):
        for name, text in report.texts.items():
            data_file(name).write_text(text, encoding="utf-8")
        report = validate()
    _print_json(report) if options.json else _print(report)
    return 1 if report.problems else 0


def _print(report: Report) -> None:
    for name, rows in report.rows.items():
        marked = [row for row in rows if row.findings]
        print(f"{name}: {len(rows)} rows, {len(marked)} with findings")
        for row in marked:
            for finding in row.findings:
                print(f"  {row.id}: {finding.check}: {finding.detail}")
    counts = Counter(finding.check for rows in report.rows.values() for row in rows for finding in row.findings)
    print("findings by check: " + ", ".join(f"{check} {count}" for check, count in sorted(counts.items())))
    for problem in report.problems:
        print(f"PROBLEM {problem}", file=sys.stderr)


def _print_json(report: Report) -> None:
    found = [
        {"file": name, "id": row.id, "check": finding.check, "detail": finding.detail}
        for name, rows in report.rows.items()
        for row in rows
        for finding in row.findings
    ]
    rows = {name: len(each) for name, each in report.rows.items()}
    print(json.dumps({"rows": rows, "findings": found, "problems": list(report.problems)}, indent=2))


if __name__ == "__main__":
    sys.exit(main())
