"""A stand-in for `torchrun pretrain_gpt.py`: prints a log in Megatron-LM's form, with the arguments it was given.

The argument dump is that of a recorded run with the given flags put over it; step times are drawn around a mean that
depends on the dispatcher.
"""

from __future__ import annotations

import gzip
import random
import re
import sys
from pathlib import Path

RECORDED = Path(__file__).parent / "logs/alltoall-a.log.gz"
DUMPED = re.compile(r"^  (\w+) \.{3,} (.*)$")
LINE = (
    " [2026-12-01 00:45:{second:02d}.000000] iteration {step:8d}/{steps:8d} | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): {rate:.1f} | "
    "learning rate: 1.000000E-04 | global batch size: {batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | "
    "grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def main() -> int:
    """Print the log of the command line's run; its first word gives the mean step times, `alltoall=1000,deepep=900`."""
    means = dict(word.split("=") for word in sys.argv[1].split(","))
    given = flags(sys.argv[2:])
    world = int(given["nproc_per_node"]) * int(given["nnodes"])
    given |= {"world_size": str(world), "data_parallel_size": str(world)}
    print("NCCL version 2.28.9+cuda13.0")
    dispatcher = given.get("moe_token_dispatcher_type", "alltoall")
    dispatcher = given["moe_flex_dispatcher_backend"] if dispatcher == "flex" else dispatcher
    for line in gzip.decompress(RECORDED.read_bytes()).decode().splitlines():
        match = DUMPED.match(line)
        if match and match[1] in given:
            print(f"  {match[1]} {'.' * (48 - len(match[1]))} {given[match[1]]}")
        elif " iteration " not in line:
            print(
                line.replace(
                    "world size: 2, data-parallel size: 2", f"world size: {world}, data-parallel size: {world}"
                )
            )
    rng, steps, batch = random.Random(), int(given["train_iters"]), int(given["global_batch_size"])
    launch = rng.gauss(1.0, 0.003)
    for step in range(1, steps + 1):
        ms = float(means[dispatcher]) * launch * rng.gauss(1.0, 0.01) * (3.0 if step <= 2 else 1.0)
        values = {"step": step, "steps": steps, "samples": step * batch, "ms": ms, "batch": batch}
        print(LINE.format(second=step % 60, rate=400e3 / ms, loss=10.0 - step * 0.01, **values))
    return 0


def flags(words: list[str]) -> dict[str, str]:
    """`--a-b value` as {a_b: value}; a switch is True."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            found[name] = "True"
        elif name:
            found[name] = word
    return found


if __name__ == "__main__":
    raise SystemExit(main())
