"""How long `advise`, `evidence` and `card` take to answer, start included, against the bare interpreter.

The commands run in turn, so that a busy machine slows all of them alike; figures are medians and their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

LIMIT_MS = 500.0
"""What a person should wait at most, on a quiet machine."""

WORKLOAD = ("qwen3-235b-a22b", "--site", "gb200", "--nodes", "16", "--ep", "8", "--pp", "8")


def main() -> int:
    """Measure, print a table, and end with the RESULT line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=15, help="runs of each command")
    runs = parser.parse_args().runs
    command = str(Path(sys.executable).parent / "moe-dispatch")
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "advise": [command, "advise", *WORKLOAD],
        "advise_json": [command, "advise", *WORKLOAD, "--json"],
        "evidence": [command, "evidence"],
        "card": [command, "card", WORKLOAD[0]],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, arguments in commands.items():
            start = time.perf_counter()
            subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first round fills the file cache
                seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    print(f"{'command':<14}{'median ms':>10}{'least ms':>10}{'x bare':>8}")
    for name, values in seconds.items():
        print(f"{name:<14}{median[name]:>10.0f}{min(values) * 1e3:>10.0f}{median[name] / median['python']:>8.1f}")
    print(f"wanted on a quiet machine: {LIMIT_MS:.0f} ms for advise and evidence")
    result = {
        "figures": {f"{name}_ms": round(value, 1) for name, value in median.items()},
        "hardware": {"cpu_count": os.cpu_count(), "machine": platform.machine()},
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("moe-dispatch", "typer", "pydantic")},
        "labels": [],
    }
    print(f"RESULT {json.dumps(result)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
