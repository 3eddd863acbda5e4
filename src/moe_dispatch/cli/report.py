"""`moe-dispatch report`: the HTML report of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli.output import JsonOption, print_json


def report(
    sources: Annotated[list[str], typer.Argument(metavar="STORE...", help="Stores, run folders or record files.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The HTML file.")] = "report.html",
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Which session (default: the newest in the store).")
    ] = None,
    threshold: opt.Threshold = 0.02,
    attest: opt.Attest = None,
    core_version: opt.CoreVersion = "0.19",
    as_json: JsonOption = False,
) -> int:
    """Make the self-contained HTML report of one session of a store, with the verdict over its records."""
    from moe_dispatch.flow.judge import report_of_records
    from moe_dispatch.report.html import write_html

    data = report_of_records(sources, session, threshold, tuple(attest or ()), core_version)
    path = write_html(data, output)
    if as_json:
        print_json({"report": str(path), "session": data.session, "verdict": data.verdict})
    else:
        print(f"{data.verdict.kind.value}: {data.verdict.statement}")
        print(f"report: {path}")
    return 0 if data.verdict.clean else 1
