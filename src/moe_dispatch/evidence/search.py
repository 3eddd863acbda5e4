"""Search over published rows and own records: filters in forgiving words, sorting inside one kind, a row by its id."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TypeVar

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.closest import family_members
from moe_dispatch.evidence.published import (
    Row,
    load_knob_pairs,
    load_micro,
    load_pairs,
    load_recipes,
    load_training,
)
from moe_dispatch.evidence.published.files import data_file, read_document

LOADERS: Mapping[str, Callable[[], tuple[Row, ...]]] = {
    "training": load_training,
    "ab": load_pairs,
    "knob": load_knob_pairs,
    "recipe": load_recipes,
    "micro": load_micro,
}
"""Kind -> its rows, in the order in which they are shown."""
SORTS: Mapping[str, tuple[str, ...]] = {
    "training": (
        "step_s",
        "tflops_per_gpu",
        "tokens_per_s_per_gpu",
        "peak_memory_bytes",
        "date",
        "gpus",
        "ep",
        "model",
    ),
    "ab": ("speedup", "margin", "date", "gpus", "ep"),
    "knob": ("speedup", "margin", "date", "gpus", "ep"),
    "recipe": ("num_sms", "gpus", "ep"),
    "micro": ("dispatch_us", "combine_us", "dispatch_gbytes_per_s", "combine_gbytes_per_s", "num_sms", "ep", "date"),
    "own": ("latency_us", "date", "gpus", "ep"),
}
"""Kind -> what its rows may be sorted by."""


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Conditions that must all hold; None and False are no condition.

    Fields:
        models: any of these names.
        precision: `fp8` also finds every FP8 recipe.
        since: ISO day or month; a row without a date does not pass.
        stated: only rows whose source names the dispatcher.
    """

    models: frozenset[str] | None = None
    hardware: str | None = None
    dispatcher: str | None = None
    ep: int | None = None
    precision: str | None = None
    since: str | None = None
    stated: bool = False

    def keeps(self, row: Row) -> bool:
        """Whether a row passes. A row that does not have the field asked for does not."""
        precision = getattr(row, "precision", None) or ""
        return (
            (self.models is None or row.model in self.models)
            and self.hardware in (None, row.hardware)
            and (self.dispatcher is None or self.dispatcher in row.dispatchers)
            and self.ep in (None, getattr(row, "ep", None))
            and (self.precision is None or precision == self.precision or precision.startswith(f"{self.precision}_"))
            and (self.since is None or (bool(row.date) and row.date >= self.since[: len(row.date)]))
            and (not self.stated or row.basis == "stated")
        )


def make_filter(
    rows: Iterable[Row],
    *,
    model: str | None = None,
    hardware: str | None = None,
    dispatcher: str | None = None,
    ep: int | None = None,
    precision: str | None = None,
    since: str | None = None,
    stated: bool = False,
) -> Filter:
    """A filter from the words of a person.

    Args:
        rows: what will be searched; a name that none of them has is refused with the nearest ones.
        model: a model, a family or the first words of a name; case, underscores and an owner prefix do not matter.

    Raises:
        UsageError: a name that no row has, an EP below 1, a date that is none.
    """
    kept = list(rows)
    if ep is not None and ep < 1:
        raise UsageError(f"--ep {ep} must be at least 1", "1 is no expert parallelism")
    hardware_keys = {row.hardware for row in kept if row.hardware}
    return Filter(
        models=None if model is None else _models(model, {row.model for row in kept if row.model}),
        hardware=None if hardware is None else _one("--hardware", _hardware(hardware, hardware_keys), hardware_keys),
        dispatcher=None if dispatcher is None else _dispatcher(dispatcher, kept),
        ep=ep,
        precision=None if precision is None else _precision(precision, kept),
        since=None if since is None else _since(since),
        stated=stated,
    )


def training_precision(name: str) -> str:
    """A training precision as published rows name it, from a person's word.

    Raises:
        UsageError: no published row has it.
    """
    return _precision(name, [row for load in LOADERS.values() for row in load()])


@dataclass(frozen=True, kw_only=True)
class KindOverview:
    """What there is of one kind."""

    kind: str
    rows: int
    with_findings: int
    dispatchers: tuple[str, ...]
    hardware: tuple[str, ...]
    models: tuple[str, ...]


def overview() -> tuple[list[KindOverview], str]:
    """Each kind in short, and the day up to which sources were read."""
    kinds = []
    for kind, load in LOADERS.items():
        rows = load()
        kinds.append(
            KindOverview(
                kind=kind,
                rows=len(rows),
                with_findings=sum(bool(row.findings) for row in rows),
                dispatchers=tuple(sorted({each for row in rows for each in row.dispatchers})),
                hardware=tuple(sorted({row.hardware for row in rows if row.hardware})),
                models=tuple(sorted({row.model for row in rows if row.model})),
            )
        )
    collected: str = read_document(data_file("training.json"))["collected"]
    return kinds, collected


def sort_rows(rows: Sequence[R], kind: str, key: str) -> list[R]:
    """Rows by one field, lowest first; `-key` highest first; rows without it last.

    Raises:
        UsageError: rows of this kind do not have it.
    """
    name = key.removeprefix("-").replace("-", "_")
    name = {"step_time_s": "step_s", "step_time": "step_s"}.get(name, name)
    if name not in SORTS[kind]:
        raise UsageError(f"--sort {key!r} is not for rows of kind {kind}", f"use one of: {', '.join(SORTS[kind])}")
    having = [row for row in rows if getattr(row, name) not in (None, "")]
    lacking = [row for row in rows if getattr(row, name) in (None, "")]
    return [*sorted(having, key=lambda row: getattr(row, name), reverse=key.startswith("-")), *lacking]


def find_row(rows: Iterable[R], name: str) -> R:
    """The row with this id.

    Raises:
        UsageError: there is none; names the nearest.
    """
    known = {row.id: row for row in rows}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [each for each in known if name in each][:3]
    hint = f"did you mean {', '.join(close)}?" if close else "list ids with `moe-dispatch evidence --kind training`"
    raise UsageError(f"no evidence has the id {name!r}", hint)


def _models(name: str, known: set[str]) -> frozenset[str]:
    from moe_dispatch.workload.catalogue import list_models, normalize_name

    wanted = normalize_name(name)
    aliases = {alias: entry.name for entry in list_models() for alias in (entry.name, *entry.aliases)}
    catalogued = aliases.get(wanted, wanted)
    if catalogued in known:
        return frozenset({catalogued})
    if members := family_members(wanted) & known or {each for each in known if each.startswith(f"{wanted}-")}:
        return frozenset(members)
    if catalogued in aliases:
        raise UsageError(
            f"no evidence is about model '{catalogued}'",
            f"`moe-dispatch evidence --closest {catalogued} --ep N` finds what is nearest",
        )
    return frozenset({_one("--model", wanted, known)})


def _hardware(name: str, known: set[str]) -> str:
    words = name.lower().replace("_", "-").split("-")
    return next((word for word in words if word in known), name.lower())


def _dispatcher(name: str, rows: Sequence[Row]) -> str:
    return _one("--dispatcher", name.lower(), {each for row in rows for each in row.dispatchers})


def _precision(name: str, rows: Sequence[Row]) -> str:
    known = {precision for row in rows if (precision := getattr(row, "precision", None))}
    wanted = name.lower().replace("-", "_").replace("mxfp8", "fp8_mx")
    return _one("--precision", wanted, known | {each.split("_")[0] for each in known})


def _since(text: str) -> str:
    try:
        date.fromisoformat({4: f"{text}-01-01", 7: f"{text}-01"}.get(len(text), text))
    except ValueError:
        raise UsageError(f"--since {text!r} is no date", "write 2026, 2026-05 or 2026-05-17") from None
    return text


def _one(option: str, name: str, known: set[str]) -> str:
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    listed = ", ".join(sorted(known))
    raise UsageError(f"{option} {name!r}: no evidence has it", f"{hint}known: {listed}")
