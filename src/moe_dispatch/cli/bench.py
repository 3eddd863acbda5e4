"""`moe-dispatch bench`: measure chosen dispatchers; a table and records, no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli import training as train
from moe_dispatch.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from moe_dispatch.flow.train import TrainRequest

_WARMUP, _VISITS, _ITERATIONS = 2, 4, 3


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
    routing: train.TrainRouting = None,
    skew: opt.Skew = "none",
    level: Annotated[
        str,
        typer.Option(
            metavar="L", help="exchange (dispatch and combine), layer (MoE layer) or train (steps of a model)."
        ),
    ] = "exchange",
    warmup: Annotated[
        int | None,
        typer.Option(metavar="N", help="Warm-up iterations of each arm (default: 2; in training by a rule)."),
    ] = None,
    visits: Annotated[
        int | None, typer.Option(metavar="N", help="Passes over the arms, A B B A ... (default: 4).")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", help="Timed iterations of an arm in each pass (default: 3).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Training steps of each arm (train; default: 20).")
    ] = None,
    scale: train.Scale = "auto",
    global_batch: train.GlobalBatch = None,
    text: train.Text = None,
    recompute: train.Recompute = "none",
    learning_rate: train.LearningRate = 1e-3,
    aux_loss: train.AuxLoss = 0.0,
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

    Exits 1 when a dispatcher gave no valid timing. On a CPU the tokens of a rank are fitted to --budget; a model that
    is trained is fitted to the machine by --scale.
    """
    from moe_dispatch.cli.session import progress
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.flow.measure_chosen import run_chosen
    from moe_dispatch.flow.request import MeasureRequest
    from moe_dispatch.flow.train import TrainRequest, recompute_of

    for name, value in (("--warmup", warmup), ("--visits", visits), ("--iterations", iterations)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} must be at least 1")
    if level not in ("exchange", "layer", "train"):
        raise UsageError(f"--level {level!r} is not known", "use exchange, layer or train")
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
    if level == "train":
        _only("train", visits=visits, iterations=iterations)
        return _train(
            TrainRequest(
                measure=request,
                scale=scale,
                steps=20 if steps is None else steps,
                warmup=warmup,
                global_batch=global_batch,
                text=text,
                recompute=recompute_of(recompute),
                learning_rate=learning_rate,
                aux_loss_coeff=aux_loss,
            ),
            as_json,
        )
    _only(level, steps=steps, global_batch=global_batch, text=text)
    passes = (warmup or _WARMUP, visits or _VISITS, iterations or _ITERATIONS)
    result = run_chosen(request, "layer" if level == "layer" else "exchange", passes, progress())
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


def _only(level: str, **given: object) -> None:
    """Refuse options that this level does not have."""
    from moe_dispatch.core.errors import UsageError

    for name, value in given.items():
        if value is not None:
            option = name.replace("_", "-")
            other = "--steps" if level == "train" else "--level train"
            raise UsageError(f"--{option} has no meaning for --level {level}", f"leave it out, or use {other}")


def _train(request: TrainRequest, as_json: bool) -> int:
    """Train the arms and show them."""
    from moe_dispatch.cli.session import progress
    from moe_dispatch.flow.train import run_training

    result = run_training(request, progress())
    if isinstance(result, str):
        print_json({"followed": result}) if as_json else print(result)
        return 0
    train.show_training(result, as_json)
    return 0 if all(row.status == "ok" for row in result.rows) else 1


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
