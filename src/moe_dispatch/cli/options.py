"""Options that several sub-commands share, declared once with plain types."""

from __future__ import annotations

from typing import Annotated

import typer

Workload = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Catalogue name, a Hugging Face config.json, or a workload YAML.")
]
Ep = Annotated[int | None, typer.Option(metavar="N", help="Expert parallel size.")]
Tp = Annotated[int | None, typer.Option(metavar="N", help="Tensor parallel size.")]
Pp = Annotated[int | None, typer.Option(metavar="N", help="Pipeline parallel size.")]
Cp = Annotated[int | None, typer.Option(metavar="N", help="Context parallel size.")]
Etp = Annotated[int | None, typer.Option(metavar="N", help="Expert tensor parallel size (default: as --tp).")]
SeqLength = Annotated[int | None, typer.Option(metavar="N", help="Tokens of one sequence (default: 4096).")]
MicroBatch = Annotated[int | None, typer.Option(metavar="N", help="Sequences of one micro-batch (default: 1).")]
Precision = Annotated[str | None, typer.Option(metavar="P", help="bf16, fp16 or fp32 (default: bf16).")]
Routing = Annotated[
    str | None,
    typer.Option(metavar="R", help="force_balanced, zipf:S, biased:STD or trace:FILE (default: force_balanced)."),
]
Skew = Annotated[
    str, typer.Option(metavar="R", help="Skewed routing that must not flip the verdict; `none` leaves it out.")
]
Nproc = Annotated[int | None, typer.Option(metavar="N", help="Ranks started on this node (default: EP / nodes).")]
Nnodes = Annotated[int, typer.Option(metavar="N", help="Nodes that run this same command together.")]
NodeRank = Annotated[int, typer.Option(metavar="I", help="Which of the nodes this is; node 0 decides.")]
RdzvEndpoint = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the nodes meet, on node 0.")]
MasterPort = Annotated[
    int | None, typer.Option(metavar="PORT", help="Port of the ranks' own rendezvous (default: a free one).")
]
RanksPerDomain = Annotated[
    int | None, typer.Option(metavar="N", help="Ranks in one NVLink domain (default: those of one node).")
]
Dispatcher = Annotated[
    list[str] | None,
    typer.Option("--dispatcher", metavar="NAME", help="Only this one, beside the baseline alltoall; repeat for more."),
]
Launches = Annotated[int, typer.Option(metavar="N", help="Sets of processes; a winner needs five.")]
Budget = Annotated[float, typer.Option(metavar="SECONDS", help="Time that the measurements may take, about.")]
Threshold = Annotated[
    float, typer.Option(metavar="X", help="Smallest relative difference that matters; below it: a tie.")
]
Attest = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD", help="Declare an unknown contract field (stack.driver) or group (hardware) equal; repeat."
    ),
]
Store = Annotated[str | None, typer.Option(metavar="DIR", help="Where records are kept (default: OUT/store).")]
Out = Annotated[str, typer.Option(metavar="DIR", help="Where the report, the verdict and the configuration go.")]
Site = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A declared site (see `hardware`) instead of this machine: plan only."),
]
Nodes = Annotated[int, typer.Option(metavar="N", help="Nodes of the declared site.")]
CoreVersion = Annotated[str, typer.Option(metavar="V", help="Megatron-Core version to write configuration for.")]

DEFAULT_OUT = "moe-dispatch-out"
DEFAULT_SKEW = "zipf:1.0"
