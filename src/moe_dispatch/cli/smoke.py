"""`moe-dispatch smoke`: a few training steps through every dispatcher that is here, and the reason for the others."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli import training as train
from moe_dispatch.cli.output import JsonOption, print_json


def smoke(
    workload: opt.Workload,
    ep: opt.Ep = None,
    seq_length: opt.SeqLength = None,
    micro_batch: opt.MicroBatch = None,
    global_batch: train.GlobalBatch = None,
    precision: opt.Precision = None,
    routing: train.TrainRouting = None,
    scale: train.Scale = "auto",
    steps: Annotated[int, typer.Option(metavar="N", help="Training steps of each dispatcher.")] = 5,
    warmup: Annotated[
        int | None, typer.Option(metavar="N", help="Leading steps left out (default: 2 or a fifth, the larger).")
    ] = None,
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
        typer.Option("--dispatcher", metavar="NAME[:k=v,...]", help="Beside alltoall (default: all); repeat for more."),
    ] = None,
    launches: opt.Launches = 1,
    store: opt.Store = None,
    out: opt.Out = opt.DEFAULT_OUT,
    as_json: JsonOption = False,
) -> int:
    """Train a small real model for a few steps through every dispatcher that is here.

    Shows step time, throughput, loss, memory and how close each is to a float32 reference; a backend that is absent is
    shown with the reason. It ranks nothing. Exits 1 when a dispatcher that is here failed, or one that was named is not
    here.
    """
    from moe_dispatch.cli.session import progress
    from moe_dispatch.flow.request import MeasureRequest
    from moe_dispatch.flow.smoke import run_smoke
    from moe_dispatch.flow.train import TrainRequest, recompute_of

    sizes = {
        "ep": ep,
        "seq_length": seq_length,
        "micro_batch": micro_batch,
        "precision": precision,
        "routing": routing,
    }
    request = TrainRequest(
        measure=MeasureRequest(
            workload=workload,
            sizes=sizes,
            nproc=nproc,
            nnodes=nnodes,
            node_rank=node_rank,
            rdzv_endpoint=rdzv_endpoint,
            master_port=master_port,
            ranks_per_domain=ranks_per_domain,
            dispatchers=tuple(dispatcher or ()),
            launches=launches,
            store=store,
            out=out,
        ),
        scale=scale,
        steps=steps,
        warmup=warmup,
        global_batch=global_batch,
        text=text,
        recompute=recompute_of(recompute),
        learning_rate=learning_rate,
        aux_loss_coeff=aux_loss,
    )
    result = run_smoke(request, progress())
    if isinstance(result, str):
        print_json({"followed": result}) if as_json else print(result)
        return 0
    train.show_training(result.runs, as_json, {"passed": result.passed})
    return 0 if result.passed else 1
