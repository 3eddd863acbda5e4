"""One self-contained HTML file: verdict on top, figures, tables, raw data. It loads nothing over a network.

plotly.js is inlined once from the installed plotly package, and a Content-Security-Policy forbids the page any request.
"""

from __future__ import annotations

import importlib
import importlib.resources
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_dispatch.core.errors import MissingDependency, StoreError
from moe_dispatch.core.finding import Severity
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.report import text
from moe_dispatch.report.data import ReportData
from moe_dispatch.report.figures import colours, figures

if TYPE_CHECKING:
    import jinja2

TEMPLATE = "report.html.j2"
_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def write_html(data: ReportData, path: str | os.PathLike[str]) -> Path:
    """Render and write, replacing an older file only once the new one is complete.

    Raises:
        MissingDependency: plotly or jinja2 is not installed.
        StoreError: the file cannot be written.
    """
    target = Path(path)
    page = render_html(data).encode()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(page)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StoreError(
            f"the report cannot be written to {target}: {error.strerror}", "choose another output path with free space"
        ) from error
    return target


def render_html(data: ReportData) -> str:
    """The page as text.

    Raises:
        MissingDependency: plotly or jinja2 is not installed.
    """
    environment = _environment()
    plotly_js = _plotly_js()
    made = figures(data)
    page = environment.get_template(TEMPLATE).render(
        data=data,
        verdict=data.verdict,
        kind_title=text.KIND_TITLES[data.verdict.kind],
        figures={figure.name: figure for figure in made},
        figures_json=_for_script([figure.model_dump(include={"name", "data", "layout"}) for figure in made]),
        data_json=_for_script(data.model_dump(mode="json")),
        plotly_js=plotly_js if made else "",
        findings=sorted(data.all_findings, key=lambda one: _ORDER.index(one.severity)),
        colours=colours(data.verdict),
        ok_records=[record for record in data.records if record.status is RunStatus.OK],
        captions=text.CAPTIONS,
        class_titles=text.CLASS_TITLES,
    )
    return str(page)


def _environment() -> jinja2.Environment:
    library = _needed("jinja2", lambda: importlib.import_module("jinja2"))
    environment: jinja2.Environment = library.Environment(
        loader=library.FunctionLoader(_template_text), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.undefined = library.StrictUndefined
    environment.filters |= {
        "duration": text.duration,
        "size": text.size,
        "ratio": text.ratio,
        "value": text.value,
        "median": _median,
    }
    return environment


def _template_text(name: str) -> str:
    return (importlib.resources.files("moe_dispatch.report") / "templates" / name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    def load() -> Any:
        from plotly.offline import get_plotlyjs

        return get_plotlyjs()

    # A closing tag inside a string of the library would end the element that holds it.
    return str(_needed("plotly", load)).replace("</script", "<\\/script")


def _needed(package: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ImportError as error:
        raise MissingDependency(
            f"the HTML report needs {package}, which is not installed ({error})", "pip install 'moe-dispatch[report]'"
        ) from error


def _for_script(document: object) -> str:
    """JSON that cannot end the element it is in."""
    plain = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
