"""`moe-dispatch emit`: a dispatcher and its knobs as configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli import options as opt
from moe_dispatch.cli.output import JsonOption, print_json


def emit(
    dispatcher: Annotated[str, typer.Argument(metavar="DISPATCHER", help="A backend's name, see `backends`.")],
    knob: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A knob of it; repeat for more.")] = None,
    core_version: opt.CoreVersion = "0.19",
    workload: Annotated[
        str | None, typer.Option(metavar="WORKLOAD", help="Check the group size and routing against this workload.")
    ] = None,
    ep: opt.Ep = None,
    tp: opt.Tp = None,
    etp: opt.Etp = None,
    routing: opt.Routing = None,
    site: Annotated[str | None, typer.Option(metavar="NAME", help="A declared site; gives the NVLink domain.")] = None,
    nodes: opt.Nodes = 1,
    natural_routing: Annotated[
        bool, typer.Option("--natural-routing", help="Leave out the forced routing of benchmarks.")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Also a Slurm script around your training; needs --workload and --site.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Write a dispatcher and its knobs as Megatron-LM arguments and Megatron-Bridge overrides.

    A dispatcher that Megatron does not ship has no configuration; that is said, and the exit code is 1.
    """
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.core.registry import get_backend
    from moe_dispatch.flow.choices import parse_choice
    from moe_dispatch.megatron.emit import emit as write
    from moe_dispatch.megatron.slurm import slurm_script
    from moe_dispatch.site.hardware import declared_site
    from moe_dispatch.workload.workload import load_workload

    for name, value, needed, given in (
        ("--ep", ep, "--workload", workload),
        ("--tp", tp, "--workload", workload),
        ("--etp", etp, "--workload", workload),
        ("--routing", routing, "--workload", workload),
        ("--nodes", None if nodes == 1 else nodes, "--site", site),
        ("--slurm", slurm or None, "--workload", workload),
        ("--slurm", slurm or None, "--site", site),
    ):
        if value is not None and given is None:
            shown = name if value is True else f"{name} {value}"
            raise UsageError(f"{shown} needs {needed}", f"give {needed}, or leave {name} out")
    choice = parse_choice(dispatcher, knob or ())
    where = declared_site(site, nodes) if site else None
    sizes = {"ep": ep, "tp": tp, "etp": etp, "routing": routing, "world": where.ranks if where and slurm else None}
    loaded = load_workload(workload, overrides=sizes) if workload else None
    emitted = write(choice, get_backend(choice.dispatcher), loaded, where, core_version, not natural_routing)
    script = slurm_script(emitted, loaded, where) if slurm and loaded and where else None
    code = 0 if emitted.shipped else 1
    if as_json:
        print_json({**emitted.model_dump(mode="json"), "slurm": script} if script else emitted)
        return code
    from moe_dispatch.flow.configure import config_blocks
    from moe_dispatch.report.data import ConfigBlock
    from moe_dispatch.report.terminal import make_console, show_config

    console = make_console()
    for block in config_blocks(emitted):
        show_config(block, console)
    if script:
        show_config(ConfigBlock(title="Slurm script", text=script), console)
    return code
