"""The gate's upper levels: a backend's buffer is made on a real group, and tokens come back as the oracle says.

Every rank is a process of its own under a time limit, so a backend that crashes or hangs harms nothing here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moe_dispatch.bench.gate_rank_report import RankReport
from moe_dispatch.bench.launch import rank_environment
from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.site.environment import mask_environment_values
from moe_dispatch.site.gate_classify_library import diagnose_library
from moe_dispatch.site.gate_diagnosis import Diagnosis, first_line
from moe_dispatch.site.gate_process import OUTPUT_TAIL, end_session, tail
from moe_dispatch.site.gate_report import NO_ADAPTER, not_run
from moe_dispatch.site.gate_result import LEVELS, GateResult, Level, LevelResult

TIMEOUT_S = 120.0
_POLL_S = 0.05
_GRACE_S = 2.0
"""After one rank has failed, how long the others may take to say so as well."""


@dataclass(frozen=True)
class GateGroup:
    """The group that a gate is proved on.

    Fields:
        local_ranks: processes to start here; world: ranks on all nodes; first_rank: of this node.
        init_method: where they meet (`tcp://host:port`); None for a group of this node alone.
    """

    device: Literal["cpu", "cuda"]
    local_ranks: int
    world: int | None = None
    first_rank: int = 0
    init_method: str | None = None


@dataclass(frozen=True)
class _Outcome:
    reports: tuple[RankReport, ...]
    codes: tuple[int | None, ...]
    output: str
    seconds: float


def prove(
    spec: BackendSpec, result: GateResult, group: GateGroup, timeout_s: float = TIMEOUT_S, python: str = sys.executable
) -> GateResult:
    """Climb `initialises` and `moves-tokens` on a group, and put them into a gate's result.

    Args:
        result: of the lower levels; if a level failed there, or this release holds no adapter, nothing is started.
        timeout_s: for both levels together; every process that was started is gone afterwards.
    """
    if not result.available:
        return result
    if spec.target is None:
        return _with(result, tuple(not_run(level, NO_ADAPTER) for level in LEVELS[3:]))
    devices = spec.platforms or spec.capabilities.devices
    if group.device not in devices:
        reason = f"needs {' or '.join(devices)}; this group is on {group.device}"
        return _with(result, tuple(not_run(level, reason) for level in LEVELS[3:]))
    outcome = _run(spec, group, timeout_s, python)
    failure = _failure(spec, outcome, timeout_s)
    levels = _levels(outcome, failure, group)
    proved = _with(result, levels, seconds=result.seconds + outcome.seconds)
    if failure is None:
        return proved
    return proved.model_copy(
        update={
            "available": False,
            "reason_class": failure.reason_class,
            "reason": mask_environment_values(failure.reason),
            "fix": failure.fix,
            "detail": mask_environment_values(_detail(outcome))[-OUTPUT_TAIL:],
        }
    )


def _run(spec: BackendSpec, group: GateGroup, timeout_s: float, python: str) -> _Outcome:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moe-dispatch-gate-") as folder:
        spec_path, log_path = Path(folder, "spec.json"), Path(folder, "output")
        spec_path.write_text(spec.model_dump_json(), encoding="utf-8")
        world = group.world or group.local_ranks
        meeting = group.init_method or f"file://{folder}/rendezvous"
        ranks: list[subprocess.Popen[bytes]] = []
        with open(log_path, "wb") as log:
            try:
                for local in range(group.local_ranks):
                    rank = group.first_rank + local
                    arguments = (spec_path, folder, rank, world, group.device, meeting, timeout_s, local)
                    ranks.append(
                        subprocess.Popen(
                            [python, "-u", "-X", "faulthandler", "-m", "moe_dispatch.bench.gate_rank"]
                            + [str(argument) for argument in arguments],
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                            env=os.environ | rank_environment(None),
                        )
                    )
                _wait(ranks, begin + timeout_s)
                codes = tuple(rank.poll() for rank in ranks)
            finally:
                for process in ranks:
                    end_session(process)
        reports = tuple(_read(Path(folder), group.first_rank + local) for local in range(group.local_ranks))
        return _Outcome(reports, codes, tail(log_path), time.monotonic() - begin)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], deadline: float) -> None:
    """Until all ranks ended; once one has failed, the others get little more time."""
    while time.monotonic() < deadline:
        codes = [rank.poll() for rank in ranks]
        if None not in codes:
            return
        if any(codes):
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        time.sleep(_POLL_S)


def _read(folder: Path, rank: int) -> RankReport:
    try:
        return RankReport(**json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return RankReport(rank=rank)


def _failure(spec: BackendSpec, outcome: _Outcome, timeout_s: float) -> Diagnosis | None:
    """Why the group did not come to the end: a wrong result, an error or a crash, else the limit."""
    wrong = next((report for report in outcome.reports if report.wrong), None)
    if wrong:
        return Diagnosis(
            "wrong-result",
            f"{spec.name} moves tokens, but not as the oracle says: {first_line(wrong.wrong)}",
            "do not train with it here; report it to its makers with this output",
        )
    first = _first_to_fail(outcome)
    if first is not None:
        return _error(spec, first[0]) if first[0].error_type else _crash(spec, *first)
    waiting = [report for report in outcome.reports if report.reached != "moves-tokens"]
    if waiting:
        lowest = min(waiting, key=lambda report: LEVELS.index(report.reached))
        ranks = ", ".join(str(report.rank) for report in waiting)
        return Diagnosis(
            "init-timeout" if lowest.reached == "supported" else "exchange-timeout",
            f"{spec.name} {_doing(lowest.reached)} for more than {timeout_s:g} s on rank {ranks}",
            "look at the ranks' output; check the network between them and stale locks of a compiler's cache",
        )
    return None


def _first_to_fail(outcome: _Outcome) -> tuple[RankReport, int] | None:
    """The rank that is to blame: one that crashed, else the first that raised, else one that aborted.

    The others lose their peer and raise or abort because of it.
    """
    ended = [(report, code) for report, code in zip(outcome.reports, outcome.codes, strict=True) if code]
    crashed = [each for each in ended if each[1] < 0 and each[1] != -signal.SIGABRT]
    raised = sorted((each for each in ended if each[0].error_type), key=lambda each: each[0].failed_at_s)
    return next(iter([*crashed, *raised, *ended]), None)


def _crash(spec: BackendSpec, report: RankReport, code: int) -> Diagnosis:
    how = f"by signal {-code}" if code < 0 else f"with status {code}"
    return Diagnosis(
        "crashed",
        f"{spec.name}: rank {report.rank} was ended {how} while it {_doing(report.reached)}",
        "read the output that is kept with this result; rebuild the package for this driver and GPU",
    )


def _error(spec: BackendSpec, report: RankReport) -> Diagnosis:
    error = {
        "type": report.error_type,
        "message": report.error,
        "raised_by": report.raised_by,
        "traceback": report.traceback,
    }
    found = diagnose_library(spec.name, error, {"top": spec.name})
    what = first_line(report.error) or f"no message, raised by `{report.raised_by}`"
    where = f"{spec.name}, rank {report.rank}, while it {_doing(report.reached)}"
    if found is not None:
        return Diagnosis(found.reason_class, f"{where}: {what}", found.fix)
    return Diagnosis(
        "other", f"{where}: {report.error_type}: {what}", "read the traceback that is kept with this result"
    )


def _doing(reached: Level) -> str:
    return "made its buffer" if reached == "supported" else "moved tokens"


def _levels(outcome: _Outcome, failure: Diagnosis | None, group: GateGroup) -> tuple[LevelResult, ...]:
    lowest = min(LEVELS.index(report.reached) for report in outcome.reports)
    world = group.world or group.local_ranks
    reason = mask_environment_values(failure.reason) if failure else ""
    evidence = {
        "initialises": f"{world} rank{'s' if world > 1 else ''} on {group.device}",
        "moves-tokens": f"{min(report.checks for report in outcome.reports)} checks of the oracle",
    }
    levels = []
    for place, level in enumerate(LEVELS[3:], start=3):
        if place <= lowest:
            levels.append(LevelResult(level=level, state="passed", evidence=(evidence[level],)))
        elif place == lowest + 1:
            levels.append(LevelResult(level=level, state="failed", reason=reason, seconds=outcome.seconds))
        else:
            levels.append(not_run(level, "a lower level was not reached"))
    return tuple(levels)


def _with(result: GateResult, levels: Sequence[LevelResult], seconds: float | None = None) -> GateResult:
    """The result with these levels in place of its own."""
    new = {each.level: each for each in levels}
    merged = tuple(new.get(each.level, each) for each in result.levels)
    reached = next((each.level for each in reversed(merged) if each.state == "passed"), "none")
    update = {"levels": merged, "level_reached": reached, "seconds": result.seconds if seconds is None else seconds}
    return result.model_copy(update=update)


def _detail(outcome: _Outcome) -> str:
    traces = [f"rank {report.rank}: {report.traceback.strip()}" for report in outcome.reports if report.traceback]
    return "\n".join(part for part in (outcome.output.strip(), *traces) if part)
