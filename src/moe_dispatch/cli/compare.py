"""`moe-dispatch compare`: contract check and verdict over stored records."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli.output import JsonOption, print_json


def compare(
    sources: Annotated[
        list[str], typer.Argument(metavar="RECORD|STORE...", help="Files of records, stores, plan folders.")
    ],
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this session (default: all records together).")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(metavar="ARM", help="Only this arm (dispatcher or label); repeat for more.")
    ] = None,
    vary: Annotated[
        str, typer.Option(metavar="WHAT", help="What is compared: dispatcher, or stack (of one dispatcher).")
    ] = "dispatcher",
    baseline: Annotated[str | None, typer.Option(metavar="ARM", help="What to divide by (default: alltoall).")] = None,
    threshold: opt.Threshold = 0.02,
    attest: opt.Attest = None,
    routing: Annotated[
        str | None, typer.Option(metavar="R", help="Routing of the main comparison (default: force_balanced).")
    ] = None,
    phase: Annotated[str, typer.Option(metavar="P", help="Latency that is compared: total, forward or backward.")] = (
        "total"
    ),
    as_json: JsonOption = False,
) -> int:
    """Check stored records against one contract and give the verdict over them.

    A field of the contract that differs refuses the comparison by name, unless it is part of using a backend: then it
    is disclosed. One that is unknown caps the verdict.
    Exits 1 without a valid verdict, or when an arm was refused.
    """
    from moe_dispatch.decide.verdict import decide
    from moe_dispatch.flow.judge import of_arms, of_session, read_records, simplicity
    from moe_dispatch.workload.routing import RoutingSpec

    records, unreadable = read_records(sources)
    if session is not None:
        records = of_session(records, session)
    records = of_arms(records, arm or ())
    verdict = decide(
        records,
        simplicity=simplicity(),
        baseline=baseline,
        threshold=threshold,
        attest=tuple(attest or ()),
        routing=RoutingSpec.parse(routing).canonical if routing else None,
        phase=phase,
        vary=vary,
    )
    if as_json:
        print_json({"verdict": verdict, "records": len(records), "unreadable": unreadable})
    else:
        from moe_dispatch.cli.show import show_verdict

        show_verdict(verdict, unreadable)
    return 0 if verdict.clean else 1
