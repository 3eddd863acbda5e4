"""`moe-dispatch doctor`: what this machine is, and why a backend will or will not run, on every rank of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json, say

if TYPE_CHECKING:
    from moe_dispatch.flow.doctor import Ended
    from moe_dispatch.flow.doctor_request import DoctorRequest
    from moe_dispatch.site.rank_report import RankReport

_NAMES = "NAME[,NAME]"


def doctor(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[REPORT]...", help="With --merge: files, or folders of them.")
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option(metavar=_NAMES, help="Exit 0 only if these pass their gate on every host.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(metavar=_NAMES, help="Look at these only, and take their findings as they are.")
    ] = None,
    ep: Annotated[int | None, typer.Option(metavar="N", help="Expert parallel size, after every override.")] = None,
    etp: Annotated[int | None, typer.Option(metavar="N", help="Expert tensor parallel size.")] = None,
    tp: Annotated[int | None, typer.Option(metavar="N", help="Tensor parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(metavar="N", help="Pipeline parallel size.")] = None,
    cp: Annotated[int | None, typer.Option(metavar="N", help="Context parallel size.")] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens of one rank in a micro-batch.")] = None,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="A declared site (see `hardware`) instead of this machine.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Nodes of the declared site.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="This machine only, even inside a launch.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For all ranks to arrive.")] = 10.0,
    probe_timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For the probe of one package.")] = 60.0,
    prove: Annotated[
        int | None,
        typer.Option(metavar="RANKS", help="Start so many ranks here: make each backend on them and move tokens."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Where rank 0 listens (default: MASTER_PORT or the next free).")
    ] = None,
    rank_report: Annotated[
        str | None, typer.Option(metavar="FILE|FOLDER/|-", help="Write this rank's report as JSON; meet no other rank.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Compare the reports of all ranks, without network.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Say what this machine is and how far each backend comes on it, with the reason and the fix.

    Under torchrun, srun or mpirun all ranks are compared and end with the same exit code; rank 0 prints.
    Exit codes: 0 no error, 1 an error finding (or a required backend that is not usable), 2 usage.
    """
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.flow.doctor import merge_reports, run_doctor
    from moe_dispatch.flow.doctor_request import DoctorRequest

    request = DoctorRequest(
        require=_names(require),
        backends=_names(backend),
        ep=ep,
        etp=etp,
        tp=tp,
        pp=pp,
        cp=cp,
        tokens=tokens,
        site=site,
        nodes=nodes,
        alone=alone,
        arrive_s=timeout,
        probe_s=probe_timeout,
        prove=prove,
        port=port,
    )
    if merge:
        if rank_report is not None or site is not None:
            raise UsageError("--merge goes with neither --rank-report nor --site", "merge reports in a run of its own")
        return _show(merge_reports(request, _read(files or [])), as_json)
    if files:
        raise UsageError(f"what is {files[0]!r}? Files are reports of ranks and belong to --merge", "see --help")
    if rank_report is not None:
        return _write(request, rank_report)
    return _show(run_doctor(request), as_json)


def _show(ended: Ended, as_json: bool) -> int:
    examination = ended.examination
    if examination is None:
        return ended.exit_code
    if as_json:
        print_json({**examination.model_dump(mode="json"), "exit_code": ended.exit_code})
        return ended.exit_code
    from moe_dispatch.report.doctor import show_examination, show_required
    from moe_dispatch.report.findings import make_console

    show = show_required if examination.required else show_examination
    show(examination, make_console())
    return ended.exit_code


def _read(names: list[str]) -> dict[Path, RankReport]:
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.site.rank_report import read_report

    paths: list[Path] = []
    for name in names:
        found = sorted(Path(name).glob("*.json")) if Path(name).is_dir() else [Path(name)]
        if not found:
            raise UsageError(f"the folder {name} holds no *.json", "write reports there with doctor --rank-report")
        paths += found
    return {path: read_report(path) for path in paths}


def _write(request: DoctorRequest, target: str) -> int:
    from moe_dispatch.core.errors import UsageError
    from moe_dispatch.flow.doctor import own_report

    if request.site is not None:
        raise UsageError("--rank-report is of this machine, not of a declared --site", "leave one of them out")
    report = own_report(request)
    text = report.model_dump_json(indent=2)
    if target == "-":
        print(text)
        return 0
    path = Path(target)
    if target.endswith("/") or path.is_dir():
        path = path / f"rank-{report.rank:05d}.json"
    elif report.world > 1:
        raise UsageError(
            f"all {report.world} ranks would write {target}", "give a folder (with a trailing /): each rank gets a file"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}", "name another place") from error
    say(f"rank {report.rank}: {path}")
    return 0


def _names(given: list[str] | None) -> tuple[str, ...]:
    """Names from repeated options and comma separated lists, without repetition."""
    return tuple(dict.fromkeys(name.strip() for text in given or () for name in text.split(",") if name.strip()))
