"""`moe-dispatch advise`: candidates, knobs, evidence and plan for a workload on a site; runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from moe_dispatch.decide.guide_explain import Explained


def advise(
    workload: Annotated[
        str | None,
        typer.Argument(metavar="WORKLOAD", help="Catalogue name, a Hugging Face config.json, or a workload YAML."),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A declared site (see `hardware`), with its network: h100-efa. `unknown`: another GPU. Default: here.",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Nodes of the site (default: the fewest that hold the layout).")
    ] = None,
    ep: opt.Ep = None,
    tp: opt.Tp = None,
    pp: opt.Pp = None,
    vpp: Annotated[int | None, typer.Option(metavar="N", help="Virtual stages of one pipeline rank.")] = None,
    cp: opt.Cp = None,
    etp: opt.Etp = None,
    seq_length: opt.SeqLength = None,
    micro_batch: opt.MicroBatch = None,
    precision: Annotated[str | None, typer.Option(metavar="P", help="bf16, fp16, fp32 or fp8 (default: bf16).")] = None,
    stage: Annotated[
        str | None, typer.Option(metavar="S", help="How far the job has come: bring-up, profile or tuned.")
    ] = None,
    memory_tight: Annotated[bool, typer.Option("--memory-tight", help="Memory is short.")] = False,
    exposed_share: Annotated[
        float | None,
        typer.Option(metavar="X", help="Part of the step in which only dispatch or combine runs, 0 to 1."),
    ] = None,
    record: Annotated[
        str | None, typer.Option(metavar="RECORD", help="Take the exposed share from this ingested, profiled run.")
    ] = None,
    core_version: Annotated[
        str,
        typer.Option(
            "--core-version", "--megatron-version", metavar="V", help="Megatron-Core version to write settings for."
        ),
    ] = "0.19",
    explain: Annotated[
        str | None, typer.Option(metavar="RULE", help="Explain one rule of the guide, and whether it holds here.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Say which dispatchers are worth measuring for a workload on a site, with which settings, and why; runs nothing.

    Candidates and reasons come from a dated guide, published evidence stands beside them, and no verdict is given:
    measuring decides. Exits 1 when something stands against the job whatever the dispatcher.
    """
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.flow.advise import AdviceRequest, run_advise, run_explain

    if workload is None and explain is None:
        raise UsageError("advise needs a WORKLOAD", "name a model (`moe-dispatch models`), or --explain RULE")
    sizes: dict[str, int | str | None] = {"ep": ep, "tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "etp": etp}
    sizes |= {"seq_length": seq_length, "micro_batch": micro_batch, "precision": precision}
    request = None
    if workload is not None:
        request = AdviceRequest(
            workload=workload,
            sizes=sizes,
            site=site,
            nodes=nodes,
            core_version=core_version,
            stage=stage,
            memory_tight=memory_tight,
            exposed_share=exposed_share,
            record=record,
        )
    if explain is not None:
        return _show_explained(run_explain(explain, request), as_json)
    assert request is not None
    advice, findings = run_advise(request)
    if as_json:
        print_json(advice)
    else:
        from moe_dispatch.report.advice import show_advice
        from moe_dispatch.report.findings import make_console, show_findings

        console = make_console()
        show_advice(advice, console)
        show_findings((*advice.findings, *findings), console)
    return 1 if advice.findings else 0


def _show_explained(explained: Explained, as_json: bool) -> int:
    if as_json:
        print_json(explained)
        return 0
    from moe_dispatch.report.advice import show_explained
    from moe_dispatch.report.findings import make_console

    show_explained(explained, make_console())
    return 0
