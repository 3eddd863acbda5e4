"""Evidence as tables for a terminal: one for each kind, and one row in full.

How the dispatcher is known stands beside it everywhere; rows with findings are marked, figures that are derived too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from moe_dispatch.evidence.published.pairs import KnobRow, Paired, PairRow
from moe_dispatch.evidence.published.rows import MicroRow, RecipeRow, Row, Settings, TrainingRow
from moe_dispatch.report.evidence_export import document

if TYPE_CHECKING:
    from moe_dispatch.evidence.closest import Match
    from moe_dispatch.evidence.own import OwnRow


@dataclass(frozen=True, kw_only=True)
class Table:
    """Headings and rows; `shared` holds what is the same in every row, so that it needs no column."""

    headings: tuple[str, ...]
    rows: list[tuple[object, ...]]
    shared: dict[str, str]


TITLES: Mapping[str, str] = {
    "training": "Published training steps",
    "ab": "Published pairs of dispatchers",
    "knob": "Published pairs of one setting",
    "recipe": "Recipes in force (configuration, not measurement)",
    "micro": "Published dispatch and combine alone (bandwidths of different kinds do not compare)",
    "own": "Own records",
}
MARKS = (
    "! has findings (show the row)   * derived from tokens/s   ~ dispatcher inferred, not stated   "
    "forced: balance was forced, benchmark only"
)
SHORT = {"forced_balance": "forced", "benchmark_only": "", "dispatcher_inferred": ""}
"""Labels as tables show them: the first implies the second there, and `~` stands for the third."""


def table_of(kind: str, rows: Sequence[Any]) -> Table:
    """The table of one kind; columns in which all of several rows agree are taken out."""
    headings, cells_of = _TABLES[kind]
    lines = [cells_of(row) for row in rows]
    columns = list(zip(*lines, strict=True))
    same = [index for index, column in enumerate(columns) if index and len(lines) > 1 and len(set(column)) == 1]
    kept = [index for index in range(len(headings)) if index not in same]
    return Table(
        headings=tuple(headings[index] for index in kept),
        rows=[tuple(line[index] for index in kept) for line in lines],
        shared={headings[index]: str(lines[0][index]) for index in same if lines[0][index] != ""},
    )


def closest_table(matches: Sequence[Match[Any]]) -> Table:
    """Matches by distance, with what each component adds."""
    rows: list[tuple[object, ...]] = []
    for match in matches:
        differences = "; ".join(each.text for each in match.differences) or "in nothing that is compared"
        rows.append((_name(match.row), f"{match.distance:.2f}", _who(match.row), _what(match.row), differences))
    return Table(headings=("id", "distance", "dispatcher", "figure", "how it differs"), rows=rows, shared={})


def details_of(row: Row) -> list[tuple[str, str]]:
    """Every field of a row that says something, findings and derived values included."""
    lines: list[tuple[str, str]] = []
    for key, value in document(row).items():
        if value in (None, "", [], {}):
            continue
        if key in ("baseline", "treatment"):
            lines += [(f"{key} {name}", str(each)) for name, each in value.items()]
        elif key == "findings":
            lines += [("finding", f"{each['check']}: {each['detail']}") for each in value]
        elif isinstance(value, dict):
            lines += [(f"{key} {name}", str(each)) for name, each in value.items()]
        else:
            lines.append((key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return lines


def _training(row: TrainingRow) -> tuple[object, ...]:
    derived = "*" if row.step_time_s is None and row.step_s is not None else ""
    if row.measured == "moe_layer" and row.forward_ms and row.backward_ms:
        step = f"{row.forward_ms + row.backward_ms:.2f} ms"
    else:
        step = _figure(row.step_s) + derived
    figures = (step, _figure(row.tflops_per_gpu), _figure(row.tokens_per_s_per_gpu))
    return (*_about(row), _dispatcher(row), *figures, _month(row), _labels(row))


def _pair(row: PairRow) -> tuple[object, ...]:
    mark = _mark(row)
    arms = f"{row.baseline.label} -> {row.treatment.label}{mark}"
    speedup = "" if row.speedup is None else f"{row.speedup:.3f}"
    return (*_about(row), _cell(row.micro_batch), arms, speedup, row.isolation, _month(row), _labels(row))


def _knob(row: KnobRow) -> tuple[object, ...]:
    speedup = "" if row.speedup is None else f"{row.speedup:.3f}"
    change = f"{row.knob}: {row.before} -> {row.after}"
    return (*_about(row), f"{row.dispatcher}{_mark(row)}", change, speedup, ", ".join(row.confounders), _month(row))


def _recipe(row: RecipeRow) -> tuple[object, ...]:
    overlap = "" if row.ep_overlap is None else "on" if row.ep_overlap else "off"
    layout = f"TP{row.tp} PP{row.pp} CP{row.cp}"
    mark = _mark(row)
    return (
        *_about(row),
        f"{row.dispatcher}{mark}",
        _cell(row.num_sms),
        layout,
        overlap,
        _cell(row.cuda_graph),
        row.task,
    )


def _micro(row: MicroRow) -> tuple[object, ...]:
    name = f"{row.dispatcher} ({row.provider})" if row.provider else row.dispatcher
    times = (_figure(row.dispatch_us), _figure(row.combine_us))
    speeds = (_figure(row.dispatch_gbytes_per_s), _figure(row.combine_gbytes_per_s))
    return (_name(row), name, row.hardware, row.ep, row.fabric, row.mode, _cell(row.num_sms), *times, *speeds,
            row.bandwidth_kind)  # fmt: skip


def _own(row: OwnRow) -> tuple[object, ...]:
    about = (row.id, row.model, _where(row), _cell(row.ep), _cell(row.precision))
    return (*about, row.choice, row.stage, row.level, _latency(row), ", ".join(row.labels))


def _latency(row: OwnRow) -> str:
    if row.latency_us is None:
        return row.status
    # Imported late: it loads the numerics of the verdict, which a search for published rows does not need.
    from moe_dispatch.report.text import duration

    return duration(row.latency_us)


def _who(row: Row) -> str:
    if isinstance(row, PairRow):
        return f"{row.baseline.label} -> {row.treatment.label}{_mark(row)}"
    if isinstance(row, TrainingRow):
        return _dispatcher(row)
    return f"{', '.join(row.dispatchers)}{_mark(row)}"


def _what(row: Row) -> str:
    """The one figure that a row of this kind is about."""
    if isinstance(row, Paired):
        what = row.knob if isinstance(row, KnobRow) else "treatment"
        return "" if row.speedup is None else f"{what} {row.speedup:.3f} x"
    if isinstance(row, TrainingRow):
        step = "" if row.step_s is None else f"step {_figure(row.step_s)} s"
        return step or ("" if row.tflops_per_gpu is None else f"{_figure(row.tflops_per_gpu)} TFLOP/s")
    return "configuration" if isinstance(row, RecipeRow) else _latency(cast("OwnRow", row))


def _mark(row: Row) -> str:
    return "~" if row.basis == "inferred" else ""


def _about(row: TrainingRow | PairRow | KnobRow | RecipeRow) -> tuple[object, ...]:
    return (_name(row), row.model, _where(row), _cell(row.ep), _cell(row.precision))


def _where(row: Settings) -> str:
    """`256 x gb200`."""
    return f"{row.gpus or '?'} x {row.hardware or 'any'}"


def _name(row: Row) -> str:
    return f"{row.id}{' !' if row.findings else ''}"


def _dispatcher(row: TrainingRow) -> str:
    mark = _mark(row)
    return f"{row.dispatcher}{mark}" + (f" ({row.provider})" if row.provider else "")


def _labels(row: Row) -> str:
    return ", ".join(short for label in row.labels if (short := SHORT.get(label, label)))


def _month(row: Row) -> str:
    return row.date[: len("2026-01")]


def _cell(value: object) -> object:
    return "" if value is None else value


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


_ABOUT = ("id", "model", "on", "EP", "precision")
_TABLES: Mapping[str, tuple[tuple[str, ...], Callable[[Any], tuple[object, ...]]]] = {
    "training": ((*_ABOUT, "dispatcher", "step s", "TFLOP/s", "tokens/s/GPU", "date", "labels"), _training),
    "ab": ((*_ABOUT, "MBS", "dispatchers", "speed-up", "isolates", "date", "labels"), _pair),
    "knob": ((*_ABOUT, "dispatcher", "setting", "speed-up", "differs too", "date"), _knob),
    "recipe": ((*_ABOUT, "dispatcher", "SMs", "layout", "EP overlap", "graphs", "task"), _recipe),
    "micro": (
        ("id", "dispatcher", "hardware", "EP", "fabric", "mode", "SMs", "dispatch us", "combine us", "dispatch GB/s",
         "combine GB/s", "bandwidth is"),
        _micro,
    ),
    "own": (("run", *_ABOUT[1:], "choice", "stage", "level", "latency", "labels"), _own),
}  # fmt: skip
