"""What `smoke` and `bench --level train` share: the options of a training run, and how its result is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moe_dispatch.cli.output import print_json, print_table

if TYPE_CHECKING:
    from moe_dispatch.flow.train import TrainResult

Scale = Annotated[
    str,
    typer.Option(
        metavar="K=N,...",
        help="Smaller model: layers, hidden, experts, topk, ffn, heads, vocab, ... "
        "(auto fits it to this machine, none leaves it whole).",
    ),
]
GlobalBatch = Annotated[
    int | None, typer.Option(metavar="N", help="Sequences of one step (default: one micro-batch on each rank).")
]
Text = Annotated[
    str | None, typer.Option(metavar="FILE", help="Text to train on, read as bytes (default: a shipped poem).")
]
Recompute = Annotated[
    str, typer.Option(metavar="R", help="What the backward pass computes again: none, selective (MoE layers) or full.")
]
LearningRate = Annotated[float, typer.Option(metavar="X", help="Constant learning rate of AdamW.")]
AuxLoss = Annotated[float, typer.Option(metavar="X", help="Weight of the load-balancing loss.")]
TrainRouting = Annotated[
    str | None,
    typer.Option(
        metavar="R", help="natural, force_balanced, zipf:S, biased:STD or trace:FILE (default: force_balanced)."
    ),
]


def training_document(result: TrainResult) -> dict[str, Any]:
    """The result for machines."""
    from dataclasses import asdict

    return {
        "session": result.session,
        "store": result.store,
        "model": result.model,
        "tokens_per_rank": result.tokens_per_rank,
        "window": result.window,
        "rows": [{**asdict(row), "choice": row.choice.label} for row in result.rows],
        "records": result.records,
    }


def show_training(result: TrainResult, as_json: bool, extra: dict[str, Any] | None = None) -> None:
    """Print the result."""
    if as_json:
        print_json({**(extra or {}), **training_document(result)})
        return
    from moe_dispatch.report.smoke import HEADINGS, table_rows

    print(f"{result.model}: {result.tokens_per_rank} tokens a rank and micro-batch, figures over {result.window}")
    print_table(HEADINGS, table_rows(result.rows))
    for row in result.rows:
        if row.reason:
            print(f"{row.choice.label} ({row.routing}): {row.status}: {row.reason}")
            if row.fix:
                print(f"  fix: {row.fix}")
    labels = sorted({label for row in result.rows for label in row.labels})
    print(f"labels: {', '.join(labels) or 'none'}")
    print(f"session {result.session} in {result.store}")
