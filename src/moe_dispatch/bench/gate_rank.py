"""One rank of a gate's group: builds the dispatcher, moves a few tokens, and writes down how far it came.

Started by `gate_levels.py` as a process of its own, because a backend may crash or hang at either step.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from moe_dispatch.bench.gate_rank_report import RankReport
from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.errors import LaunchError
from moe_dispatch.core.registry import load_target
from moe_dispatch.dispatch.reference import check_dispatcher

TOKENS = 16
HIDDEN = 2048
"""A row width that the packages accept: they ask for multiples of 128 or more."""
TOPK = 2
EXPERTS_PER_RANK = 2
_CHARS = 3000
_TRANSPORT = {"cpu": "gloo", "cuda": "nccl"}


def main(arguments: list[str]) -> int:
    """Entry point: `SPEC.json FOLDER RANK WORLD DEVICE INIT_METHOD TIMEOUT_S LOCAL_RANK`."""
    spec_path, folder, rank, world, device, init_method, timeout_s, local_rank = arguments
    report = RankReport(rank=int(rank))
    path = Path(folder, f"rank{rank}.json")
    _write(report, path)
    try:
        spec = BackendSpec.model_validate_json(Path(spec_path).read_text(encoding="utf-8"))
        where = torch.device(device, int(local_rank)) if device == "cuda" else torch.device(device)
        if device == "cuda":
            if int(local_rank) >= torch.cuda.device_count():
                raise LaunchError(f"there is no GPU {local_rank} for it; this process sees {torch.cuda.device_count()}")
            torch.cuda.set_device(where)
        dist.init_process_group(
            _TRANSPORT[device],
            init_method=init_method,
            rank=int(rank),
            world_size=int(world),
            timeout=timedelta(seconds=float(timeout_s)),
        )
        _climb(spec, where, report, path)
    except BaseException as error:
        report.failed_at_s = time.monotonic()
        frames = traceback.extract_tb(error.__traceback__)
        report.error_type, report.error = type(error).__name__, str(error)[:_CHARS]
        report.raised_by = (frames[-1].line or "") if frames else ""
        report.traceback = "".join(traceback.format_exception(error))[-_CHARS:]
        _write(report, path)
        return 1
    return 0


def _climb(spec: BackendSpec, device: torch.device, report: RankReport, path: Path) -> None:
    group = dist.group.WORLD
    assert group is not None
    dtypes = spec.capabilities.dtypes
    dispatcher = load_target(spec)(
        group,
        EXPERTS_PER_RANK * dist.get_world_size(),
        HIDDEN,
        TOPK,
        TOKENS,
        getattr(torch, "bfloat16" if "bfloat16" in dtypes else dtypes[0]),
        device,
        {},
    )
    report.reached = "initialises"
    _write(report, path)
    oracle = check_dispatcher(dispatcher, max_tokens=TOKENS)
    report.checks = sum(oracle.checks.values())
    if oracle.passed:
        report.reached = "moves-tokens"
    else:
        report.wrong = oracle.detail
    _write(report, path)


def _write(report: RankReport, path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(report)), encoding="utf-8")
    os.replace(new, path)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # what a backend does at exit is not under test
