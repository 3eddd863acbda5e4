"""How the parts of `select` grow: with tokens, hidden size and ranks, on this machine's CPU.

    .venv/bin/python benchmarks/growth.py [--quick] [--level exchange|layer]

Each point is one launch: processes start, arms are built and checked by the oracle, warmed up, and
timed with `alltoall` and `hierarchical` interleaved. The verdict and the report work on records: they do not depend on
the shape. Last line: RESULT {json}.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from moe_dispatch.bench.events import ArmReady, Event, Finished, Fitted, RoutingCounted, Visit
from moe_dispatch.bench.launch import run_launch
from moe_dispatch.bench.plan import ArmPlan, BenchPlan
from moe_dispatch.core.choice import Choice
from moe_dispatch.core.registry import get_backend
from moe_dispatch.workload.model import ModelShape, RouterShape

BASE = {"tokens": 1024, "hidden": 1024, "ranks": 4}
POINTS = {"tokens": [256, 512, 1024, 2048, 4096], "hidden": [256, 512, 1024, 2048, 4096], "ranks": [2, 4, 8]}
EXPERTS, TOPK, FFN = 64, 8, 256
ARMS = ("alltoall", "hierarchical")


def one_launch(level: str, tokens: int, hidden: int, ranks: int) -> dict[str, float]:
    """Seconds of each part of one launch, and milliseconds of each arm's iteration."""
    shape = ModelShape(
        name="growth",
        title="growth",
        hidden=hidden,
        num_layers=1,
        num_moe_layers=1,
        num_experts=EXPERTS,
        topk=TOPK,
        moe_ffn_hidden=FFN,
        router=RouterShape(score_function="softmax"),
        source="benchmarks/growth.py",
    )
    plan = BenchPlan(
        session="growth",
        stage="screen",
        launch=0,
        level=level,  # type: ignore[arg-type]
        arms=tuple(ArmPlan(choice=Choice(dispatcher=name), target=get_backend(name).target or "") for name in ARMS),
        model=shape,
        world=ranks,
        tokens_per_rank=tokens,
        routings=("force_balanced",),
        dtype="float32",
        warmup=1,
        visits=4,
        iterations=1,
    )
    marks: list[tuple[float, Event]] = []
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        outcome = run_launch(
            plan, ranks, Path(folder) / "launch", on_event=lambda event: marks.append((time.perf_counter(), event))
        )
        end = time.perf_counter()
    if outcome.failure is not None or not outcome.finished:
        raise SystemExit(f"{level} tokens={tokens} hidden={hidden} ranks={ranks}: {outcome.failure}")

    def at(kind: type[Event]) -> float:
        return max(moment for moment, event in marks if isinstance(event, kind))

    visits = [event for _, event in marks if isinstance(event, Visit)]
    times = {
        name: statistics.median(i.latency_us["total"] for v in visits if v.arm == index for i in v.iterations) / 1e3
        for index, name in enumerate(ARMS)
    }
    return {
        "start_s": min(moment for moment, event in marks if isinstance(event, Fitted)) - start,
        "build_and_oracle_s": at(ArmReady) - at(Fitted),
        "warmup_and_measure_s": at(Visit) - at(RoutingCounted),
        "stop_s": end - at(Finished),
        **{f"{name}_ms": value for name, value in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smallest and largest of each axis only")
    parser.add_argument("--level", choices=["exchange", "layer"], help="one level only")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for level in (options.level,) if options.level else ("exchange", "layer"):
        print(f"\n{level}: T, H, ranks | start | build+oracle | warm-up+measure | stop | alltoall | hierarchical")
        done: set[tuple[int, int, int]] = set()
        for axis, values in POINTS.items():
            for value in values[:: len(values) - 1] if options.quick else values:
                at = BASE | {axis: value}
                key = (at["tokens"], at["hidden"], at["ranks"])
                if key in done:
                    continue
                done.add(key)
                parts = one_launch(level, *key)
                row = " | ".join(f"{v:.2f} s" if k.endswith("_s") else f"{v:.1f} ms" for k, v in parts.items())
                print(f"{key[0]}, {key[1]}, {key[2]} | {row}", flush=True)
                name = f"{level}_T{key[0]}_H{key[1]}_R{key[2]}"
                figures |= {f"{part}_{name}": round(value, 3) for part, value in parts.items()}
    result = {
        "figures": figures,
        "hardware": {"cpu": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "labels": ["cpu", "gloo", "benchmark_only"],
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
