"""How fast `ingest` reads a long log, against a line-by-line reader with nine patterns.

    python benchmarks/ingest_speed.py [--megabytes 200] [--rounds 2]

The log is synthetic: eight interleaved ranks, and more than nine lines in ten without a value (NCCL and launcher
chatter). The plain reader decodes every line and calls `re.search` with each of nine patterns, one for each value, as
NVIDIA-NeMo/Megatron-Bridge@0167cb95:scripts/performance/utils/evaluate.py does; it is written anew here. A second one
compiles the patterns first. All run in child processes, in turn, so that the peak memory of each is its own, and must
find the same values.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 8
PATTERNS = {
    "iteration": r"iteration\s+(\d+)\s*/\s*\d+",
    "elapsed_ms": r"elapsed time per iteration \(ms\):\s+([\d.]+)",
    "lm_loss": r"lm loss:\s+([\d.E+\-]+)",
    "tflops": r"GPU utilization:\s+([\d.]+)",
    "step_time": r"Step Time :\s+([\d.]+)s",
    "grad_norm": r"grad norm:\s+([\d.]+|nan|inf)",
    "allocated": r"mem-allocated-gigabytes:\s*([\d.]+)",
    "max_allocated": r"mem-max-allocated-gigabytes:\s*([\d.]+)",
    "max_reserved": r"mem-max-reserved-gigabytes:\s*([\d.]+)",
}
CHATTER_LINES = 200
"""Lines without a value for each iteration."""
CHATTER = (
    "[rank{r}]: NCCL INFO Channel {a:02d}/32 : {r}[{r}] -> {b}[{b}] [send] via NET/IB/{b}(1)/GDRDMA",
    "n{b}:{a}:{a} [{r}] NCCL INFO comm 0x55d0c{a}a0 rank {r} nRanks 8 nNodes 1 localRanks 8 localRank {r} MNNVL 0",
    "INFO:megatron.core.timers:(min, max) time across ranks (ms):",
    "    forward-backward ...............................: ({a}.{b}3, {a}.{b}9)",
    "[default{r}]:WARNING:megatron.core.rerun_state_machine:Result validation enabled",
    "/usr/lib/python3/site-packages/torch/autograd/graph.py:{a}: UserWarning: barrier(): using the device",
)


def write_log(path: Path, size: int) -> dict[str, int]:
    """A log of about `size` bytes; returns its lines and those with a value."""
    chance = random.Random(0)
    written = lines = values = number = 0
    planned = 10_000_000
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            number += 1
            chatter = [
                chance.choice(CHATTER).format(
                    r=chance.randrange(RANKS), a=chance.randrange(10, 99), b=chance.randrange(8)
                )
                for _ in range(CHATTER_LINES)
            ]
            ms = 20_000 + number % 700
            block = [f"Step Time : {ms / 1e3:.2f}s GPU utilization: {300 - number % 7:.1f}MODEL_TFLOP/s/GPU"]
            block.append(
                f"[default7]: [2026-08-22 10:15:43.{number % 10**6:06d}] iteration {number:8d}/{planned:8d} | consumed "
                f"samples: {number * 512:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: 3.0E-04 | "
                f"global batch size:   512 | lm loss: {8 + number % 97 / 97:.6E} | loss scale: 1.0 | grad norm: "
                f"{1 + number % 11 / 11:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
            if number <= 2:
                block.append(
                    f"[Rank 0] (after {number} iterations) memory (GB) | mem-allocated-gigabytes: 45.123 | "
                    "mem-max-allocated-gigabytes: 61.351 | mem-max-reserved-gigabytes: 63.901 | mem-alloc-retires: 0"
                )
            for one in block:
                chatter.insert(chance.randrange(len(chatter)), one)
            text = "\n".join(chatter) + "\n"
            file.write(text)
            written += len(text)
            lines += len(chatter)
            values += len(block)
    return {"lines": lines, "lines_with_values": values, "iterations": number}


def read_plainly(path: Path) -> dict[str, str]:
    """Values by the plain reader: each line is decoded and searched for each of the nine patterns."""
    return _line_by_line(path, lambda line: {k: m[1] for k, p in PATTERNS.items() if (m := re.search(p, line))})


def read_compiled(path: Path) -> dict[str, str]:
    """The same with patterns that are compiled once."""
    compiled = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
    return _line_by_line(path, lambda line: {k: m[1] for k, p in compiled.items() if (m := p.search(line))})


def _line_by_line(path: Path, search: Callable[[str], dict[str, str]]) -> dict[str, str]:
    found: dict[str, list[str]] = {name: [] for name in PATTERNS}
    iterations: dict[int, tuple[float, float, float]] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            matches = search(line)
            if "elapsed_ms" in matches:
                values = matches["elapsed_ms"], matches["lm_loss"], matches["grad_norm"]
                iterations[int(matches["iteration"])] = tuple(map(float, values))  # type: ignore[assignment]
            elif matches:
                for name, value in matches.items():
                    found[name].append(value)
    peaks = max(map(float, found["max_allocated"])), max(map(float, found["max_reserved"]))
    return _digests(iterations, set(zip(found["step_time"], found["tflops"], strict=True)), peaks)


def read_by_ingest(path: Path) -> dict[str, str]:
    """The same values by `moe_dispatch.megatron.ingest`."""
    from moe_dispatch.megatron.ingest.facts import RunFacts

    facts = RunFacts()
    facts.read([path])
    iterations = {
        line.iteration: (line.elapsed_ms or 0.0, line.lm_loss or 0.0, line.grad_norm or 0.0)
        for line in facts.lines.values()
    }
    steps = {(f"{step.seconds:.2f}", f"{step.tflops_per_gpu:.1f}") for step in facts.steps}
    memory = [(one.max_allocated_bytes or 0, one.max_reserved_bytes or 0) for one in facts.memory]
    return _digests(iterations, steps, (max(a for a, _ in memory) / 1e9, max(b for _, b in memory) / 1e9))


READERS = {"plain": read_plainly, "compiled": read_compiled, "ingest": read_by_ingest}


def _digests(
    iterations: dict[int, tuple[float, float, float]], steps: set[tuple[str, str]], peaks: tuple[float, float]
) -> dict[str, str]:
    parts = {
        "iterations": sorted(iterations.items()),
        "steps": sorted(steps),
        "peaks": [round(peak, 3) for peak in peaks],
    }
    return {name: hashlib.sha256(repr(part).encode()).hexdigest()[:16] for name, part in parts.items()}


def _child(reader: str, path: Path) -> None:
    begun = time.perf_counter()
    values = READERS[reader](path)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "values": values}))


def _run(reader: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--reader", reader, "--log", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> int:
    """Write the log, read it in turn with both, print a table and the RESULT line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reader:
        _child(given.reader, given.log)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        shape = write_log(path, given.megabytes * 10**6)
        size = path.stat().st_size
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in READERS}
        for number in range(given.rounds):
            for name in READERS if number % 2 == 0 else reversed(READERS):
                runs[name].append(_run(name, path))
    if len({json.dumps(one["values"]) for results in runs.values() for one in results}) != 1:
        print("the readers found different values", file=sys.stderr)
        return 1
    best = {name: min(float(one["seconds"]) for one in results) for name, results in runs.items()}
    peak = {name: max(int(one["peak_bytes"]) for one in results) for name, results in runs.items()}
    print(
        f"{size / 1e6:.0f} MB, {shape['lines']} lines, {shape['lines_with_values'] / shape['lines']:.1%} with a value"
    )
    for name in READERS:
        print(f"{name:<8} {best[name]:8.2f} s {size / best[name] / 1e6:10.0f} MB/s {peak[name] / 1e6:8.0f} MB peak")
    figures = {
        "log_mb": size / 1e6,
        "lines_with_values_share": shape["lines_with_values"] / shape["lines"],
        "plain_s": best["plain"],
        "ingest_s": best["ingest"],
        "plain_over_ingest": best["plain"] / best["ingest"],
        "compiled_over_ingest": best["compiled"] / best["ingest"],
        "ingest_peak_mb": peak["ingest"] / 1e6,
    }
    result = {
        "figures": figures,
        "hardware": {"machine": platform.machine(), "cpu": platform.processor()},
        "versions": {"python": platform.python_version()},
        "labels": ["synthetic_log"],
    }
    print("RESULT " + json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
