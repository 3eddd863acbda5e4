"""Figures of the HTML report as plain plotly.js dictionaries; each has a caption for those who cannot see it.

Colours are Okabe and Ito's, which people with colour blindness can tell apart.
"""

from __future__ import annotations

from typing import Any

from moe_dispatch.decide.verdict import Verdict
from moe_dispatch.evidence.record import Model, RunRecord
from moe_dispatch.report import text
from moe_dispatch.report.data import ReportData

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BASELINE_COLOUR = "#6B7280"
_INK, _GRID = "#374151", "#E5E7EB"


class Figure(Model):
    """One figure.

    Fields:
        name: element id.
        data, layout: as `Plotly.newPlot` takes them.
        caption: what it shows, in words.
        height: pixels.
    """

    name: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int


def figures(data: ReportData) -> list[Figure]:
    """All figures that the data allow."""
    verdict = data.verdict
    if not verdict.evidence:
        return []
    compared = [record for record in data.records if record.run_id in set(verdict.run_ids)]
    made = [_ratios(verdict), _times(verdict, compared)]
    if all(arm.memory_bytes is not None for arm in verdict.evidence):
        made += [_memory(verdict), _pareto(verdict)]
    return [figure for figure in made if figure is not None]


def colours(verdict: Verdict) -> dict[str, str]:
    """Colour of each arm: grey for the baseline."""
    base = verdict.baseline.label if verdict.baseline else ""
    others = [arm.choice.label for arm in verdict.evidence if arm.choice.label != base]
    chosen = {label: PALETTE[index % len(PALETTE)] for index, label in enumerate(others)}
    return {base: BASELINE_COLOUR} | chosen


def plain(label: str) -> str:
    """Plotly reads a little markup in its labels; ours never carry any."""
    return label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _ratios(verdict: Verdict) -> Figure | None:
    rows = [(arm.choice.label, arm.ratio) for arm in verdict.evidence if arm.ratio is not None]
    if not rows or verdict.baseline is None:
        return None
    palette = colours(verdict)
    margin = 1 + verdict.margin
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [one.ratio],
            "y": [plain(label)],
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [one.high - one.ratio],
                "arrayminus": [one.ratio - one.low],
                "thickness": 2,
                "width": 6,
            },
            "marker": {"size": 11, "color": palette[label]},
            "hovertemplate": f"{plain(label)}<br>{text.ratio(one)}<extra></extra>",
        }
        for label, one in reversed(rows)
        if one is not None
    ]
    base = verdict.baseline.label
    layout = _layout(f"time / time with {plain(base)}", "")
    layout["shapes"] = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": 1 / margin,
            "x1": margin,
            "y0": 0,
            "y1": 1,
            "fillcolor": "#9CA3AF",
            "opacity": 0.22,
            "line": {"width": 0},
        },
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": 1,
            "x1": 1,
            "y0": 0,
            "y1": 1,
            "line": {"color": _INK, "width": 1},
        },
    ]
    layout["yaxis"]["automargin"] = True
    return Figure(
        name="figure-ratio",
        title="Ratio to the baseline",
        caption=(
            f"Time of each dispatcher over the time with {base}, with its 95 % interval; left of 1 is faster. "
            f"Differences inside the grey band (margin {verdict.margin:.1%}) do not count."
        ),
        data=traces,
        layout=layout,
        height=130 + 46 * len(rows),
    )


def _times(verdict: Verdict, records: list[RunRecord]) -> Figure:
    palette = colours(verdict)
    unit, divisor = _unit(max(arm.median_us for arm in verdict.evidence))
    launches = {key: index for index, key in enumerate(sorted({_launch(record) for record in records}))}
    traces = []
    for arm in verdict.evidence:
        label = arm.choice.label
        mine = [record for record in records if record.choice.label == label]
        samples = [
            (launches[_launch(record)] + 1, iteration.latency_us["total"] / divisor)
            for record in sorted(mine, key=_launch)
            if record.performance is not None
            for iteration in record.performance.iterations
        ]
        traces.append(
            {
                "type": "box",
                "name": plain(label),
                "x": [f"launch {number}" for number, _ in samples],
                "y": [value for _, value in samples],
                "marker": {"color": palette[label], "size": 4},
                "line": {"width": 1.5},
                "boxpoints": "all",
                "jitter": 0.4,
                "pointpos": 0,
            }
        )
    layout = _layout("", f"time of an iteration ({unit})")
    layout |= {"boxmode": "group", "showlegend": True, "legend": {"orientation": "h", "y": 1.12, "x": 0}}
    layout["yaxis"]["rangemode"] = "tozero"
    return Figure(
        name="figure-time",
        title="Time of every iteration, by launch",
        caption="Each point is one iteration, the maximum over all ranks; boxes span the quartiles of a launch.",
        data=traces,
        layout=layout,
        height=420,
    )


def _memory(verdict: Verdict) -> Figure:
    palette = colours(verdict)
    arms = list(reversed(verdict.evidence))
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [plain(arm.choice.label) for arm in arms],
        "x": [(arm.memory_bytes or 0) / 2**20 for arm in arms],
        "text": [text.size(arm.memory_bytes) for arm in arms],
        "textposition": "auto",
        "marker": {"color": [palette[arm.choice.label] for arm in arms]},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    layout = _layout("memory added by the dispatcher's steps, largest rank (MiB)", "")
    layout["yaxis"]["automargin"] = True
    return Figure(
        name="figure-memory",
        title="Memory",
        caption="Largest memory that the steps of each dispatcher added on any rank, in any launch.",
        data=[trace],
        layout=layout,
        height=120 + 46 * len(arms),
    )


def _pareto(verdict: Verdict) -> Figure:
    palette = colours(verdict)
    unit, divisor = _unit(max(arm.median_us for arm in verdict.evidence))
    traces = []
    for arm in verdict.evidence:
        label = arm.choice.label
        kept = label in verdict.pareto
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(label),
                "x": [arm.median_us / divisor],
                "y": [(arm.memory_bytes or 0) / 2**20],
                "marker": {
                    "size": 14,
                    "color": palette[label],
                    "symbol": "circle" if kept else "circle-open",
                    "line": {"width": 2, "color": palette[label]},
                },
            }
        )
    layout = _layout(f"time ({unit})", "memory (MiB)")
    layout |= {"showlegend": True, "legend": {"orientation": "h", "y": 1.15, "x": 0}}
    layout["xaxis"]["rangemode"] = layout["yaxis"]["rangemode"] = "tozero"
    names = ", ".join(verdict.pareto)
    return Figure(
        name="figure-pareto",
        title="Time against memory",
        caption=f"Filled: no other dispatcher is better in both ({names}). Lower left is better.",
        data=traces,
        layout=layout,
        height=340,
    )


def _launch(record: RunRecord) -> tuple[str, str, int]:
    return record.session, record.stage, record.launch


def _unit(microseconds: float) -> tuple[str, float]:
    return ("us", 1.0) if microseconds < 1e3 else ("ms", 1e3) if microseconds < 1e6 else ("s", 1e6)


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    def axis(title: str) -> dict[str, Any]:
        return {"title": {"text": title}, "gridcolor": _GRID, "zerolinecolor": _GRID, "automargin": True}

    return {
        "xaxis": axis(x_title),
        "yaxis": axis(y_title),
        "showlegend": False,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 64},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": _INK},
    }
