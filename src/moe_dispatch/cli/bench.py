"""`moe-dispatch bench`: measure chosen dispatchers; a table and records, no verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli.output import JsonOption, print_json, print_table


def bench(
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
    skew: opt.Skew = "none",
    level: Annotated[
        str, typer.Option(metavar="L", help="exchange (dispatch and combine) or layer (the whole MoE layer).")
    ] = "exchange",
    warmup: Annotated[int, typer.Option(metavar="N", help="Warm-up iterations of each arm.")] = 2,
    visits: Annotated[int, typer.Option(metavar="N", help="Passes over the arms, A B B A ...")] = 4,
    iterations: Annotated[int, typer.Option(metavar="N", help="Timed iterations of an arm in each pass.")] = 3,
    nproc: opt.Nproc = None,
    nnodes: opt.Nnodes = 1,
    node_rank: opt.NodeRank = 0,
    rdzv_endpoint: opt.RdzvEndpoint = None,
    master_port: opt.MasterPort = None,
    ranks_per_domain: opt.RanksPerDomain = None,
    dispatcher: Annotated[
        list[str] | None,
        typer.Option("--dispatcher", metavar="NAME[:k=v,...]", help="What to measure (default: all); repeat for more."),
    ] = None,
    launches: opt.Launches = 1,
    budget: opt.Budget = 60.0,
    store: opt.Store = None,
    out: opt.Out = opt.DEFAULT_OUT,
    as_json: JsonOption = False,
) -> int:
    """Measure chosen dispatchers; a table and records, no verdict.

    Exits 1 when a dispatcher gave no valid timing. On a CPU the tokens of a rank are fitted to --budget.
    """
    from moe_dispatch.cli.session import progress
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.flow.measure_chosen import run_chosen
    from moe_dispatch.flow.request import MeasureRequest

    for name, value in (("--warmup", warmup), ("--visits", visits), ("--iterations", iterations)):
        if value < 1:
            raise UsageError(f"{name} {value} must be at least 1")
    if level not in ("exchange", "layer"):
        raise UsageError(f"--level {level!r} is not known", "use exchange or layer")
    request = MeasureRequest(
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
        store=store,
        out=out,
    )
    result = run_chosen(request, "layer" if level == "layer" else "exchange", (warmup, visits, iterations), progress())
    if isinstance(result, str):
        print_json({"followed": result}) if as_json else print(result)
        return 0
    if as_json:
        print_json({"session": result.session, "store": result.store, "records": result.records})
    else:
        print_table(
            ("dispatcher", "routing", "status", "runs", "total ms", "fwd ms", "bwd ms", "spread"),
            [
                (
                    row.choice.label,
                    row.routing,
                    row.status,
                    f"{row.launches}x{row.iterations // row.launches}",
                    *(_milliseconds(value) for value in (row.total_ms, row.forward_ms, row.backward_ms)),
                    "" if row.spread is None else f"{row.spread:.1%}",
                )
                for row in result.rows
            ],
        )
        for row in result.rows:
            if row.reason:
                print(f"{row.choice.label} ({row.routing}): {row.status}: {row.reason}")
        labels = sorted({label for row in result.rows for label in row.labels})
        print(f"labels: {', '.join(labels) or 'none'}; tokens per rank: {result.tokens}")
        print(f"session {result.session} in {result.store}")
    return 0 if all(row.status == "ok" for row in result.rows) else 1


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
