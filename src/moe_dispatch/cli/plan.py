"""`moe-dispatch plan`: the matched training A/B as a folder of scripts for one allocation."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli.output import JsonOption, print_json


def plan(
    workload: opt.Workload,
    ep: opt.Ep = None,
    tp: opt.Tp = None,
    pp: opt.Pp = None,
    cp: opt.Cp = None,
    etp: opt.Etp = None,
    seq_length: opt.SeqLength = None,
    micro_batch: opt.MicroBatch = None,
    global_batch: Annotated[int | None, typer.Option(metavar="N", help="Sequences of one step.")] = None,
    precision: opt.Precision = None,
    site: opt.Site = None,
    nodes: opt.Nodes = 1,
    dispatcher: opt.Dispatcher = None,
    absent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=WHY]", help="A backend that cannot be used there: left out, with the reason."),
    ] = None,
    framework: Annotated[str, typer.Option(metavar="F", help="megatron-lm or megatron-bridge.")] = "megatron-lm",
    core_version: opt.CoreVersion = "0.19",
    launches: opt.Launches = 5,
    threshold: opt.Threshold = 0.02,
    step_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds of one step, for the cost (default: from FLOPs).")
    ] = None,
    startup_seconds: Annotated[
        float, typer.Option(metavar="S", help="Seconds of one run before its first step, for the cost.")
    ] = 180.0,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Folder to write (default: only show the plan).")] = (
        None
    ),
    as_json: JsonOption = False,
) -> int:
    """Plan the training runs that prove a dispatcher: matched arms, their order in one allocation, scripts and cost.

    Arms differ from the baseline only in the dispatcher and what it forces, which is listed. Backends that cannot run
    there are left out with the reason. `compare DIR` reads the logs afterwards. Exits 1 when no backend has an arm.
    """
    from moe_dispatch.flow.plan import PlanRequest, make_plan

    made, files = make_plan(
        PlanRequest(
            workload=workload,
            sizes={
                "ep": ep,
                "tp": tp,
                "pp": pp,
                "cp": cp,
                "etp": etp,
                "seq_length": seq_length,
                "micro_batch": micro_batch,
                "global_batch": global_batch,
                "precision": precision,
            },
            site=site,
            nodes=nodes,
            dispatchers=tuple(dispatcher or ()),
            absent=tuple(absent or ()),
            framework=framework,
            core_version=core_version,
            launches=launches,
            threshold=threshold,
            step_seconds=step_seconds,
            startup_seconds=startup_seconds,
            out=out,
        )
    )
    code = 0 if len(made.arms_of("decide")) > 1 else 1
    if as_json:
        print_json({"plan": made, "files": [str(path) for path in files]})
    else:
        from moe_dispatch.report.plan import show_plan

        show_plan(made, files)
    return code
