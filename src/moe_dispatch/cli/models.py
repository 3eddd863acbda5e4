"""`moe-dispatch models`: the catalogue of model shapes."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json, print_table


def models(
    name: Annotated[str | None, typer.Argument(help="Show this model in full; a config.json path also works.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the model catalogue, or show one model."""
    if name is not None:
        _show(name, as_json)
        return
    from moe_dispatch.workload.catalogue import list_models

    entries = list_models()
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "title": entry.title,
                    "num_experts": entry.num_experts,
                    "topk": entry.topk,
                    "aliases": entry.aliases,
                    "missing": entry.missing,
                    "measurable": entry.shape is not None,
                    "shape": None if entry.shape is None else entry.shape.model_dump(mode="json"),
                    "source": entry.source,
                }
                for entry in entries
            ]
        )
        return
    rows = []
    for entry in entries:
        shape = entry.shape
        sizes = ("?", "?", "?") if shape is None else (shape.hidden, shape.moe_ffn_hidden, shape.num_moe_layers)
        rows.append((entry.name, entry.num_experts, entry.topk, *sizes, "" if shape else "needs its config.json"))
    print_table(("model", "experts", "top-k", "hidden", "ffn", "MoE layers", "note"), rows)


def _show(name: str, as_json: bool) -> None:
    from moe_dispatch.workload.flops import moe_layer_flops
    from moe_dispatch.workload.workload import load_workload

    shape = load_workload(name, ep=1).model
    flops = moe_layer_flops(shape)
    if as_json:
        print_json({**shape.model_dump(mode="json"), "moe_layer_forward_flops_per_token": flops.forward})
        return
    fields = [(key, value) for key, value in shape.model_dump(mode="json").items() if value not in (None, "", [], ())]
    fields.append(("MoE layer, forward FLOPs per token", flops.forward))
    print_table(("field", "value"), [(key, str(value)) for key, value in fields])
