"""`moe-dispatch select`: the whole flow on this machine or allocation."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli.output import JsonOption


def select(
    workload: opt.Workload,
    ep: opt.Ep = None,
    tp: opt.Tp = None,
    pp: opt.Pp = None,
    cp: opt.Cp = None,
    etp: opt.Etp = None,
    seq_length: opt.SeqLength = None,
    micro_batch: opt.MicroBatch = None,
    precision: opt.Precision = None,
    routing: opt.Routing = None,
    skew: opt.Skew = opt.DEFAULT_SKEW,
    nproc: opt.Nproc = None,
    nnodes: opt.Nnodes = 1,
    node_rank: opt.NodeRank = 0,
    rdzv_endpoint: opt.RdzvEndpoint = None,
    master_port: opt.MasterPort = None,
    ranks_per_domain: opt.RanksPerDomain = None,
    dispatcher: opt.Dispatcher = None,
    launches: opt.Launches = 5,
    budget: opt.Budget = 150.0,
    threshold: opt.Threshold = 0.02,
    attest: opt.Attest = None,
    store: opt.Store = None,
    out: opt.Out = opt.DEFAULT_OUT,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="STORE", help="Repeat only what this store lacks or had unavailable; same command otherwise."
        ),
    ] = None,
    site: opt.Site = None,
    nodes: opt.Nodes = 1,
    core_version: opt.CoreVersion = "0.19",
    as_json: JsonOption = False,
) -> int:
    """Measure the dispatchers that can run here, and write a proven verdict and its configuration.

    Screens every candidate on the exchange, decides on the whole MoE layer over several launches, and writes
    report.html, verdict.json and the Megatron configuration into OUT. Records of every attempt go to the store.
    With a declared --site that is not this machine, prints the candidates and the plan and runs nothing.
    """
    from moe_dispatch.cli.session import progress
    from moe_dispatch.flow.request import MeasureRequest, SelectRequest
    from moe_dispatch.flow.select import run_select

    request = SelectRequest(
        measure=MeasureRequest(
            workload=workload,
            sizes={
                "ep": ep,
                "tp": tp,
                "pp": pp,
                "cp": cp,
                "etp": etp,
                "seq_length": seq_length,
                "micro_batch": micro_batch,
                "precision": precision,
                "routing": routing,
            },
            skew=skew,
            nproc=nproc,
            nnodes=nnodes,
            node_rank=node_rank,
            rdzv_endpoint=rdzv_endpoint,
            master_port=master_port,
            ranks_per_domain=ranks_per_domain,
            dispatchers=tuple(dispatcher or ()),
            launches=launches,
            budget_s=budget,
            store=resume or store,
            out=out,
        ),
        threshold=threshold,
        attest=tuple(attest or ()),
        resume=resume is not None,
        site=site,
        nodes=nodes,
        core_version=core_version,
    )
    from moe_dispatch.cli.show import show_selection

    return show_selection(run_select(request, progress()), as_json)
