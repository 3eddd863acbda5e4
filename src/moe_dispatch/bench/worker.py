"""The rank process: `python -m moe_dispatch.bench.worker PLAN FOLDER`, started by torchrun.

Rank 0 appends results to the folder. A rank that fails says why in an error file and leaves at once, without waiting
for peers that may be stuck; torchrun then stops the others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from moe_dispatch.bench.classify import EXIT_STORAGE, ErrorKind, error_kind
from moe_dispatch.bench.events import RESULTS_FILE, Event, ResultsWriter
from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.procs import die_with_parent
from moe_dispatch.bench.progress import ProgressWriter
from moe_dispatch.core.errors import MoeDispatchError

_MESSAGE_LIMIT = 600


def main(arguments: list[str]) -> int:
    """Measure the plan on this rank; returns 0, or leaves the process with another code."""
    die_with_parent()
    plan_path, folder = Path(arguments[0]), Path(arguments[1])
    number = int(os.environ["RANK"])
    progress = ProgressWriter(folder / "progress", number, socket.gethostname())
    stack_file = (folder / "progress" / f"stack{number}.txt").open("w", encoding="utf-8")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stack_file, all_threads=True)
    try:
        _run(BenchPlan.model_validate_json(plan_path.read_text(encoding="utf-8")), folder, progress, number)
    except BaseException as error:
        # One line per failure class is enough for the record; the traceback goes to the log.
        said = error.message if isinstance(error, MoeDispatchError) else str(error)
        text = " ".join(said.split()) or type(error).__name__
        if not isinstance(error, MoeDispatchError) and type(error).__name__ not in text:
            text = f"{type(error).__name__}: {text}"
        kind = error_kind(error)
        with contextlib.suppress(OSError):
            progress.fail(kind.value, text[:_MESSAGE_LIMIT], getattr(error, "fix", ""))
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(EXIT_STORAGE if kind is ErrorKind.STORAGE else 1)
    return 0


def _run(plan: BenchPlan, folder: Path, progress: ProgressWriter, number: int) -> None:
    from moe_dispatch.bench.measure import measure
    from moe_dispatch.bench.rank import Rank
    from moe_dispatch.bench.train import train

    rank = Rank(plan, progress)
    writer = ResultsWriter(folder / RESULTS_FILE) if number == 0 else None

    def report(event: Event) -> None:
        if writer is not None:
            writer.write(event)

    run = measure if plan.train is None else train
    run(plan, rank, report)
    rank.close()
    if writer is not None:
        writer.close()
    progress.at("done")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
