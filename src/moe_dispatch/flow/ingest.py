"""Training logs to RunRecords: which files make one run, reading them, and storing the records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Finding
from moe_dispatch.core.registry import get_backend
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.evidence.store import Store
from moe_dispatch.flow.plan_runs import records_of_plan
from moe_dispatch.megatron.ingest.records import record_of
from moe_dispatch.megatron.ingest.run import RunRequest, read_run
from moe_dispatch.megatron.ingest.timeline import WindowRequest
from moe_dispatch.megatron.plan.model import is_plan_folder
from moe_dispatch.site.environment import recorded_environment
from moe_dispatch.site.hardware import find_hardware

SAVED_CONFIG = "ConfigContainer.yaml"
"""Name under which Bridge's performance scripts let the run save its validated configuration."""
_LOG_NAME = re.compile(r".*\.(?:log|out|err|txt)(?:\.gz)?", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"\d+|attempt_\d+|rank[_-]?\d+|none_\w+")
"""Folders that torchrun --log-dir makes inside one run."""


@dataclass(frozen=True, kw_only=True)
class IngestOptions:
    """What the user says about the runs; see `RunRequest`."""

    together: bool = False
    config: Path | None = None
    config_saved: bool = False
    profile: Path | None = None
    arm: str | None = None
    gpu: str | None = None
    ranks: int | None = None
    environment: Path | None = None
    window: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """Records in the order of the runs, and findings by run id; those of a whole plan stand with its first run."""

    records: tuple[RunRecord, ...]
    findings: Mapping[str, tuple[Finding, ...]]


def ingest(sources: Sequence[str], options: IngestOptions, store: Path | None = None) -> Ingested:
    """Read every run that the sources hold; with a store, keep the records.

    Args:
        sources: a file is one run, in a folder too; files that torchrun wrote for each rank belong together. The folder
            of a plan gives the records of its deciding stage.

    Raises:
        UsageError: a source, configuration, profile or option that cannot be meant.
        StoreError: the store cannot be written.
    """
    plans = [source for source in sources if is_plan_folder(Path(source).expanduser())]
    others = [source for source in sources if source not in plans]
    groups = run_files(others, together=options.together)
    single = (("--config", options.config), ("--nsys", options.profile))
    for option, value in single:
        if value is not None and len(groups) > 1:
            raise UsageError(f"{option} belongs to one run, and these are {len(groups)}", "ingest the runs one by one")
    if options.arm is not None:
        get_backend(options.arm)
    if store is not None:
        Store(store).check_writable()
    gpu = find_hardware(options.gpu) if options.gpu is not None else None
    window = WindowRequest.parse(options.window) if options.window is not None else None
    environment = read_environment(options.environment) if options.environment is not None else None
    records: list[RunRecord] = []
    findings: dict[str, tuple[Finding, ...]] = {}
    for source in plans:
        planned, missing = records_of_plan(Path(source).expanduser())
        if store is not None:
            for record in planned:
                Store(store).write(record)
        records += planned
        findings |= {record.run_id: () for record in planned}
        findings[planned[0].run_id] = tuple(missing)
    for logs in groups:
        saved = None if options.config is not None else _saved_config(logs)
        run = read_run(
            RunRequest(
                logs=logs,
                config=options.config or saved,
                config_saved=options.config_saved or saved is not None,
                profile=options.profile,
                arm=options.arm,
                gpu=gpu,
                ranks=options.ranks,
                environment=environment,
                window=window,
            )
        )
        record = record_of(run)
        if store is not None:
            Store(store).write(record)
        records.append(record)
        findings[record.run_id] = run.findings
    return Ingested(records=tuple(records), findings=findings)


def run_files(sources: Sequence[str], *, together: bool = False) -> list[tuple[Path, ...]]:
    """The files of each run, in the order of the sources.

    Raises:
        UsageError: a source that does not exist, or a folder without logs.
    """
    groups: list[tuple[Path, ...]] = []
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            groups += _runs_in(path)
        elif path.is_file():
            groups.append((path,))
        else:
            raise UsageError(f"log {source} does not exist", "give log files, or folders that hold them")
    unique = list(dict.fromkeys(groups))
    return [tuple(dict.fromkeys(path for group in unique for path in group))] if together else unique


def read_environment(path: Path) -> dict[str, str]:
    """Variables of a run from a file of NAME=VALUE lines, as `env` prints them; only those that are recorded.

    Raises:
        UsageError: unreadable, or no such line.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"environment {path} cannot be read: {error.strerror}", "give the output of env") from None
    pairs = (line.removeprefix("export ").partition("=") for line in text.splitlines())
    found = {name.strip(): value.strip().strip("\"'") for name, sign, value in pairs if sign and name.strip()}
    if not found:
        raise UsageError(f"environment {path} holds no NAME=VALUE line", "give the output of env")
    return recorded_environment(found)


def _runs_in(folder: Path) -> list[tuple[Path, ...]]:
    runs: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if _LOG_NAME.fullmatch(path.name) and path.is_file():
            home = path
            if _RANK_FOLDER.fullmatch(path.parent.name):
                home = next(one for one in path.parents if not _RANK_FOLDER.fullmatch(one.name))
            runs.setdefault(home, []).append(path)
    if not runs:
        raise UsageError(f"folder {folder} holds no .log, .out, .err or .txt file", "give the folder of the logs")
    return [tuple(files) for files in runs.values()]


def _saved_config(logs: Sequence[Path]) -> Path | None:
    """The validated configuration that lies beside the logs, in `configs/` or next to them."""
    folder = logs[0].parent
    return next((path for path in (folder / SAVED_CONFIG, folder / "configs" / SAVED_CONFIG) if path.is_file()), None)
