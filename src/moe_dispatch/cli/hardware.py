"""`moe-dispatch hardware`: the hardware catalogue, and what this machine is."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json, print_table


def hardware(
    name: Annotated[str | None, typer.Argument(help="Show this entry in full.")] = None,
    here: Annotated[bool, typer.Option("--here", help="Show what this machine is instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the hardware catalogue, or what this machine is.

    Figures are nominal: one direction of one GPU, in 1e9 bytes per second.
    """
    if here:
        from moe_dispatch.site.probe import probe

        site = probe()
        print_json(site) if as_json else print(site.summary)
        return
    from moe_dispatch.site.hardware import find_hardware, load_hardware

    if name is not None:
        entry = find_hardware(name)
        if as_json:
            print_json(entry)
        else:
            print_table(("field", "value"), [(key, str(value)) for key, value in entry.model_dump(mode="json").items()])
        return
    entries = load_hardware().values()
    if as_json:
        print_json(list(entries))
        return
    headings = ("name", "GPUs/node", "NVLink domain", "GB", "SMs", "bf16 TFLOP/s", "link GB/s", "NIC GB/s")
    rows = [
        (
            entry.name,
            entry.gpus_per_node,
            entry.nvlink_domain,
            f"{entry.memory_gb:g}",
            entry.sms,
            f"{entry.bf16_tflops:g}",
            f"{entry.link_gbytes_per_s:g}",
            f"{entry.nic_gbytes_per_s:g}",
        )
        for entry in entries
    ]
    print_table(headings, rows)
