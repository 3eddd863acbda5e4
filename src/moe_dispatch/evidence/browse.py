"""One question to the evidence, answered in sections: a kind of published rows each, and own records apart.

Sections are never merged into one ranking: a step time, a speed-up, a recipe and an own latency are different things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.closest import EvidenceQuery, Match, closest
from moe_dispatch.evidence.published.rows import Row, Settings
from moe_dispatch.evidence.search import LOADERS, Filter, make_filter, sort_rows

if TYPE_CHECKING:
    from moe_dispatch.core.finding import Finding

KINDS = (*LOADERS, "own")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked; see `make_filter` for the words.

    Fields:
        kind: only this kind of `KINDS`.
        own: a store whose records are shown beside the published rows.
        sort: a field of one kind.
        query: a workload; sections then hold matches by distance.
    """

    words: Mapping[str, Any]
    kind: str | None = None
    own: Path | None = None
    sort: str | None = None
    query: EvidenceQuery | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """Rows of one kind that match, in the order asked for.

    Fields:
        matches: distance and differences, in the order of `rows`; empty unless a workload was given.
        undated: rows that would match but have no date, when `since` was asked.
    """

    kind: str
    rows: tuple[Row, ...]
    matches: tuple[Match[Settings], ...] = ()
    undated: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Sections that hold something, and help when none does.

    Fields:
        without: condition -> rows that match when it alone is dropped; only given when nothing matches.
        findings: what of the own store could not be read.
    """

    sections: tuple[Section, ...]
    without: Mapping[str, int]
    findings: tuple[Finding, ...] = ()


def browse(question: Question) -> Answer:
    """Answer a question.

    Raises:
        UsageError: unknown words, a sort key that the kind does not have, or sorting over several kinds.
        StoreError: the own store cannot be read.
    """
    kinds = _kinds(question)
    own, findings = _own_rows(question.own) if question.own and "own" in kinds else ((), ())
    pools: dict[str, Sequence[Row]] = {kind: own if kind == "own" else LOADERS[kind]() for kind in kinds}
    searched = [row for pool in pools.values() for row in pool]
    wanted = make_filter([*searched, *(row for load in LOADERS.values() for row in load())], **question.words)
    sections = tuple(
        section for kind, pool in pools.items() if (section := _section(question, kind, pool, wanted)).rows
    )
    without = {} if sections else _relaxed(wanted, searched)
    return Answer(sections=sections, without=without, findings=findings)


def find_own(store: Path) -> tuple[Row, ...]:
    """Records of a store as rows."""
    return _own_rows(store)[0]


def _kinds(question: Question) -> tuple[str, ...]:
    if question.kind is not None and question.kind not in KINDS:
        raise UsageError(f"--kind {question.kind!r} is not known", f"use one of: {', '.join(KINDS)}")
    if question.kind == "own" and question.own is None:
        raise UsageError("--kind own needs a store", "name it with --own STORE")
    if question.sort and question.kind is None:
        raise UsageError(
            f"--sort {question.sort!r} needs --kind: rows of different kinds do not rank together",
            f"add --kind {', '.join(KINDS[:-1])} or own",
        )
    kinds = KINDS if question.kind is None else (question.kind, *(("own",) if question.kind != "own" else ()))
    with_own = kinds if question.own else tuple(kind for kind in kinds if kind != "own")
    return tuple(kind for kind in with_own if question.query is None or kind != "micro")


def _section(question: Question, kind: str, pool: Sequence[Row], wanted: Filter) -> Section:
    rows: list[Row] = [row for row in pool if wanted.keeps(row)]
    undated = 0
    if wanted.since:
        undated = sum(1 for row in pool if not row.date and replace(wanted, since=None).keeps(row))
    if question.query:
        matches = tuple(closest(question.query, [row for row in rows if isinstance(row, Settings)]))
        return Section(kind=kind, rows=tuple(match.row for match in matches), matches=matches, undated=undated)
    if question.sort and kind == question.kind:
        rows = sort_rows(rows, kind, question.sort)
    return Section(kind=kind, rows=tuple(rows), undated=undated)


def _relaxed(wanted: Filter, rows: Sequence[Row]) -> dict[str, int]:
    dropped: dict[str, Filter] = {
        "--model": replace(wanted, models=None),
        "--hardware": replace(wanted, hardware=None),
        "--dispatcher": replace(wanted, dispatcher=None),
        "--ep": replace(wanted, ep=None),
        "--precision": replace(wanted, precision=None),
        "--since": replace(wanted, since=None),
        "--stated": replace(wanted, stated=False),
    }
    return {name: sum(relaxed.keeps(row) for row in rows) for name, relaxed in dropped.items() if relaxed != wanted}


def _own_rows(store: Path) -> tuple[tuple[Row, ...], tuple[Finding, ...]]:
    from moe_dispatch.evidence.own import own_row
    from moe_dispatch.evidence.store import Store

    if not store.is_dir():
        raise UsageError(f"store {store} does not exist", "name a store directory that a run has written")
    contents = Store(store).scan()
    return tuple(own_row(record, store) for record in contents.records), contents.findings
