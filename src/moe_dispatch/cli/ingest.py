"""`moe-dispatch ingest`: training logs, configuration dumps and profiles to RunRecords."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from moe_dispatch.evidence.record import RunRecord
    from moe_dispatch.flow.ingest import Ingested


def ingest(
    logs: Annotated[list[str], typer.Argument(metavar="LOG|FOLDER...", help="Logs; each file is one run.")],
    together: Annotated[bool, typer.Option("--together", help="All files belong to one run.")] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="YAML", help="ConfigContainer dump of the run (Megatron-Bridge).")
    ] = None,
    config_saved: Annotated[
        bool, typer.Option("--config-saved", help="The run itself saved --config, so after validation.")
    ] = False,
    nsys: Annotated[
        Path | None, typer.Option(metavar="SQLITE", help="SQLite export of an Nsight Systems profile of the run.")
    ] = None,
    arm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Dispatcher that the run was meant to measure.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU of the run, as in `moe-dispatch hardware`; gives MFU.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Ranks of the job, where its log does not say (Bridge).")
    ] = None,
    env: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Environment of the run, as `env` prints it.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="A-B", help="Iterations that count (default: all after warm-up).")
    ] = None,
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the records in this store.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Read Megatron-LM and Megatron-Bridge training runs into records.

    A run that did not train, or whose dispatcher is not proven, becomes a record without performance and with the
    reason. Exits 1 on an error finding.
    """
    from moe_dispatch.core.finding import Severity
    from moe_dispatch.flow.ingest import IngestOptions
    from moe_dispatch.flow.ingest import ingest as read

    options = IngestOptions(
        together=together,
        config=config,
        config_saved=config_saved,
        profile=nsys,
        arm=arm,
        gpu=gpu,
        ranks=ranks,
        environment=env,
        window=window,
    )
    result = read(logs, options, store)
    if as_json:
        print_json({"records": result.records, "findings": result.findings})
    else:
        _show(result, store)
    errors = [one for found in result.findings.values() for one in found if one.severity is Severity.ERROR]
    return 1 if errors else 0


def _show(result: Ingested, store: Path | None) -> None:
    headings = ("arm", "run", "status", "proof", "steps", "mean ms", "median", "spread", "TFLOP/s/GPU", "printed")
    rows = [_row(number, record) for number, record in enumerate(result.records, 1)]
    print_table((*headings, "MFU", "tokens/s/GPU", "peak GB"), rows)
    for number, record in enumerate(result.records, 1):
        name = f"run {number}"
        print(f"{name}: {', '.join(record.training.files) if record.training is not None else record.run_id}")
        if record.reason:
            print(f"{name}: {record.status.value}: {record.reason}")
            print(f"  fix: {record.fix}" if record.fix else "", end="\n" if record.fix else "")
        if record.training is not None and record.training.exposed is not None:
            exposed = record.training.exposed
            limit = "at most " if exposed.ambiguous else ""
            print(
                f"{name}: {limit}{exposed.share:.1%} of the profiled time is exposed expert-parallel communication; "
                "no dispatcher can save more"
            )
        for finding in result.findings[record.run_id]:
            print(f"{name}: {finding.severity.value}: {finding.message}")
            for advice in finding.advice:
                print(f"  fix: {advice}")
    if store is not None:
        print(f"stored in {store}")


def _row(number: int, record: RunRecord) -> tuple[object, ...]:
    training = record.training
    metrics = training.metrics if training is not None else None
    memory = record.memory.allocated_peak_bytes if record.memory is not None else None
    proof = training.activation.level if training is not None else ""
    start: tuple[object, ...] = (record.choice.label, number, record.status.value, proof)
    end = round(memory / 1e9, 2) if memory else ""
    if metrics is None:
        steps = len(training.iterations) if training is not None else 0
        return (*start, steps, "", "", "", "", "", "", "", end)
    timed = len(record.performance.iterations) if record.performance is not None else 0
    return (
        *start,
        timed,
        round(metrics.mean_ms, 1),
        round(metrics.median_ms, 1),
        f"{metrics.spread:.1%}",
        _number(metrics.tflops_per_gpu, 1),
        _number(metrics.tflops_per_gpu_logged, 1),
        f"{metrics.mfu:.1%}" if metrics.mfu is not None else "",
        _number(metrics.tokens_per_s_per_gpu, None),
        end,
    )


def _number(value: float | None, digits: int | None) -> object:
    return "" if value is None else round(value, digits)
