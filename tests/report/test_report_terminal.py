"""The terminal view fits 80 columns, carries no control codes into a file, and shows what matters first."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from decide_records import arm_records, record
from report_data import judged, report
from rich.console import Console

from moe_dispatch.decide.stats import Interval
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.report import text
from moe_dispatch.report.progress import ProgressView
from moe_dispatch.report.terminal import show_report, show_verdict

COLUMNS = 80


def shown(**options: object) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=COLUMNS, highlight=False, **options)  # type: ignore[arg-type]
    show_report(report(config=()), console)
    return stream.getvalue()


def test_a_report_fits_and_is_plain_when_not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    output = shown()
    assert "\x1b" not in output
    assert max(len(line) for line in output.splitlines()) <= COLUMNS
    assert "\x1b[" in shown(force_terminal=True, color_system="standard")


def test_the_verdict_comes_first_and_the_numbers_follow() -> None:
    output = shown()
    order = [
        "Winner: hierarchical",
        "Recommended: hierarchical",
        "1 (baseline)",
        "Not ranked (no",
        "Contract",
        "Findings",
    ]
    places = [output.index(part) for part in order]
    assert places == sorted(places)
    for part in ("5x12", "1.30 GiB", "rows_domain", "3,700", "fix: install it", "What would change it"):
        assert part in output


def test_markup_in_foreign_text_is_shown_as_it_is() -> None:
    rows = [*arm_records("alltoall", 100), record("deepep", status=RunStatus.OOM, reason="[red]no[/red] [/] left")]
    stream = io.StringIO()
    show_verdict(judged(rows), Console(file=stream, width=COLUMNS))
    assert "[red]no[/red] [/] left" in stream.getvalue()


def test_differences_and_unknowns_are_in_the_contract_table() -> None:
    rows = [*arm_records("alltoall", 100), *arm_records("hierarchical", 80, tp=4, ep=None)]
    stream = io.StringIO()
    show_verdict(judged(rows), Console(file=stream, width=COLUMNS))
    output = stream.getvalue()
    assert "Not comparable" in output
    assert "4: hierarchical" in output


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        (0.5, "0.50 us"),
        (12.34, "12.3 us"),
        (999.4, "999 us"),
        (999.9, "1.00 ms"),
        (123_456, "123 ms"),
        (1.5e6, "1.50 s"),
    ],
)
def test_durations(microseconds: float, expected: str) -> None:
    assert text.duration(microseconds) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1.00 KiB"),
        (1_572_864, "1.50 MiB"),
        (3 * 2**40, "3.00 TiB"),
    ],
)
def test_sizes(number: int | None, expected: str) -> None:
    assert text.size(number) == expected


def test_ratios() -> None:
    interval = Interval(ratio=0.8234, low=0.8, high=0.85, launches=5, iterations=60, paired=True)
    assert text.ratio(interval) == "0.823 (0.800-0.850)"
    assert text.ratio(None) == "1 (baseline)"


def event(kind: str, done: int = 0, **fields: object) -> SimpleNamespace:
    base = {"stage": "decide", "launch": 1, "launches": 5, "total": 8, "arm": "", "routing": "", "detail": ""}
    return SimpleNamespace(kind=kind, done=done, **(base | fields))


EVENTS = (
    event("launch", detail="alltoall, hierarchical"),
    event("tokens", detail="512"),
    event("visit", 1, arm="alltoall", routing="force_balanced"),
    event("refused", 1, arm="deepep", detail="no [GPU] here"),
    event("record", 1, arm="alltoall", detail="ok"),
    event("record", 1, arm="hierarchical", detail="rank 2 was killed"),
)


def test_progress_elsewhere_is_plain_lines() -> None:
    stream = io.StringIO()
    with ProgressView(Console(file=stream, width=COLUMNS)) as view:
        view.note("probing [this] machine")
        for one in EVENTS:
            view.measured(one)
    assert stream.getvalue().splitlines() == [
        "probing [this] machine",
        "decide: launch 2 of 5: alltoall, hierarchical",
        "decide: 512 tokens per rank",
        "decide: launch 2 of 5: deepep refused: no [GPU] here",
        "decide: launch 2 of 5: hierarchical: rank 2 was killed",
    ]


def test_progress_on_a_terminal_is_a_bar_and_ends_clean() -> None:
    stream = io.StringIO()
    view = ProgressView(Console(file=stream, width=COLUMNS, force_terminal=True, color_system=None))
    for one in EVENTS:
        view.measured(one)
    view.measured(event("visit", 8, arm="hierarchical", routing="zipf:1.0"))
    view.close()
    view.close()
    output = stream.getvalue()
    assert "8/8" in output
    assert "hierarchical zipf:1.0" in output
    assert "deepep refused: no [GPU] here" in output
    assert output.rstrip("\n").endswith("\x1b[?25h"), "the cursor is given back"
