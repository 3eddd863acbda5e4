"""The HTML report is one file that loads nothing, escapes everything, and draws its figures without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from decide_records import arm_records, record
from report_data import judged, report

from moe_dispatch.core.errors import MissingDependency, StoreError
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.report import html
from moe_dispatch.report.data import ReportData
from moe_dispatch.report.figures import figures
from moe_dispatch.report.html import render_html, write_html

LOADING = {"src", "href", "srcset", "data", "poster", "action", "background"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}&lt;"


class Page(HTMLParser):
    """Elements, loading attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.scripts: dict[str, str] = {}
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in LOADING]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag in ("script", "style"):
            self._inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data
        else:
            self.words.append(data)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render_html(report()))


def test_nothing_is_loaded_and_a_policy_forbids_it(page: Page) -> None:
    assert page.loads == []
    assert page.handlers == []
    assert "link" not in page.tags
    assert "iframe" not in page.tags
    text = render_html(report())
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(\s*['\"]?https?:", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))


def test_plotly_is_inlined_once(page: Page) -> None:
    assert page.tags.count("script") == 4
    assert page.scripts["script"].count("plotly.js v") == 1


def test_everything_a_reader_needs_is_there(page: Page) -> None:
    data = report()
    for wanted in (
        data.verdict.statement,
        "Winner",
        "hierarchical",
        "1.30 GiB",
        "No module named 'deep_ep'",
        "Fix: install it",
        "rows_rank_off_domain",
        "3,688",
        "3,700",
        "moves tokens on CUDA only",
        "workload.tokens_per_rank",
        "--moe-token-dispatcher-type alltoall",
        "oversubscribed",
        "On zipf:1.0 routing",
        *data.verdict.would_change,
    ):
        assert " ".join(wanted.split()) in page.text


def test_every_figure_has_words_and_its_numbers_in_a_table(page: Page) -> None:
    data = report()
    made = figures(data)
    assert [figure.name for figure in made] == ["figure-ratio", "figure-time", "figure-memory", "figure-pareto"]
    for figure in made:
        assert figure.caption in page.text
    for arm in data.verdict.evidence:
        assert f"{arm.launches} x {arm.iterations // arm.launches}" in page.text


def test_figures_hold_the_measured_numbers() -> None:
    data = report()
    by_name = {figure.name: figure for figure in figures(data)}
    ratio = next(arm.ratio for arm in data.verdict.evidence if arm.ratio is not None)
    point = by_name["figure-ratio"].data[0]
    assert point["x"] == [ratio.ratio]
    assert point["x"][0] - point["error_x"]["arrayminus"][0] == pytest.approx(ratio.low)
    drawn = [value for trace in by_name["figure-time"].data for value in trace["y"]]
    measured = [
        iteration.latency_us["total"] / 1000
        for one in data.records
        if one.performance and one.contract.workload["routing"] == "force_balanced"
        for iteration in one.performance.iterations
    ]
    assert sorted(drawn) == pytest.approx(sorted(measured))


def test_raw_numbers_are_embedded_whole(page: Page) -> None:
    embedded = json.loads(page.scripts["report-data"])
    data = ReportData.model_validate(embedded)
    assert len(data.records) == 21
    assert data.verdict.statement == report().verdict.statement


def test_hostile_strings_stay_text() -> None:
    page = Page(render_html(report(HOSTILE)))
    assert page.tags.count("script") == 4
    assert "img" not in page.tags
    assert page.handlers == []
    assert f"tiny-moe, EP 4{HOSTILE}" in page.text
    labels = [trace.get("name", "") for figure in figures(report(HOSTILE)) for trace in figure.data]
    assert not any("<" in label for label in labels)


def test_a_verdict_without_timings_has_no_figures_and_still_renders() -> None:
    rows = [record("alltoall", status=RunStatus.CRASHED, reason="rank 1 was killed by SIGKILL")]
    text = render_html(report(verdict=judged(rows), records=tuple(rows)))
    page = Page(text)
    assert "rank 1 was killed by SIGKILL" in page.text
    assert "No recommendation" in page.text
    assert "plotly.js v" not in text


def test_a_refused_comparison_names_the_fields() -> None:
    rows = [*arm_records("alltoall", 100), *arm_records("hierarchical", 80, tp=4)]
    page = Page(render_html(report(verdict=judged(rows), records=tuple(rows))))
    assert "Not comparable" in page.text
    assert "workload.tp" in page.text
    assert "4: hierarchical" in page.text


def test_writing_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out" / "report.html"
    write_html(report(), target)
    first = target.read_bytes()
    write_html(report(title="another"), target)
    assert target.read_bytes() != first
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_path_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_html(report(), tmp_path / "file" / "report.html")


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_a_missing_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    with pytest.raises(MissingDependency, match=package) as caught:
        render_html(report())
    assert "moe-dispatch[report]" in caught.value.fix


def test_importing_the_module_needs_neither() -> None:
    code = f"import sys; import {html.__name__}; print(sorted({{'plotly', 'jinja2', 'torch'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.browser
def test_chromium_draws_every_figure_without_a_network(tmp_path: Path) -> None:
    browser = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if browser is None:
        pytest.skip("no Chromium here")
    target = write_html(report(HOSTILE), tmp_path / "report.html")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=5000",
            "--dump-dom",
            target.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    drawn = re.findall(r'<div id="(figure-[a-z]+)" class="plot js-plotly-plot"', done.stdout)
    assert drawn == ["figure-ratio", "figure-time", "figure-memory", "figure-pareto"]
    assert "<img" not in done.stdout
