"""How long `moe-dispatch --help` and `moe-dispatch select --help` take to start, against the bare interpreter.

The three commands run in turn, so that a busy machine slows all of them alike; figures are medians and their ratios.
Run it with the interpreter of an environment in which the package is installed.
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

LIMIT = 25.0
"""A start may cost at most this many starts of the bare interpreter."""

HEAVY = ("torch", "numpy", "rich", "plotly", "jinja2", "yaml")


def main() -> int:
    """Measure, print a table, and end with the RESULT line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=15, help="starts of each command")
    runs = parser.parse_args().runs
    command = str(Path(sys.executable).parent / "moe-dispatch")
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "help": [command, "--help"],
        "select_help": [command, "select", "--help"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, arguments in commands.items():
            start = time.perf_counter()
            subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first round fills the file cache
                seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    imported = {name: heavy_imports(arguments[1:]) for name, arguments in commands.items() if name != "python"}
    print(f"{'command':<28}{'median ms':>10}{'x bare':>8}  heavy imports")
    for name, arguments in commands.items():
        shown = " ".join([Path(arguments[0]).name, *arguments[1:]])
        ratio = median[name] / median["python"]
        print(f"{shown:<28}{median[name] * 1e3:>10.1f}{ratio:>8.1f}  {', '.join(imported.get(name, [])) or '-'}")
    print(f"limit: {LIMIT:.0f} x the bare interpreter")
    figures = {f"{name}_ms": round(value * 1e3, 2) for name, value in median.items()}
    figures |= {f"{name}_ratio": round(median[name] / median["python"], 2) for name in imported}
    figures |= {f"{name}_heavy_imports": len(found) for name, found in imported.items()}
    result = {
        "figures": figures,
        "hardware": {"cpu_count": os.cpu_count(), "machine": platform.machine()},
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("moe-dispatch", "typer")},
        "labels": [],
    }
    print(f"RESULT {json.dumps(result)}")
    return 0


def heavy_imports(arguments: list[str]) -> list[str]:
    """Which of `HEAVY` a start of the command line imports."""
    script = (
        "import sys\nfrom moe_dispatch.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], sep=chr(10), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stderr.split()


if __name__ == "__main__":
    sys.exit(main())
