"""How often `compare` says what is true: simulated training runs of two arms with a known ratio of step times.

Five launches an arm with two visits each, as `plan` runs them; steps and launches log-normal. A row is one truth under
one noise; the columns are shares of the verdicts. `wrong` counts winners that are slower or no faster than the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections import Counter
from datetime import datetime, timezone
from importlib import metadata

import numpy as np

from moe_dispatch.core.choice import Choice
from moe_dispatch.decide.contract_table import contract_table
from moe_dispatch.decide.verdict import decide
from moe_dispatch.evidence.ids import new_run_id
from moe_dispatch.evidence.record import (
    Contract,
    Correctness,
    Iteration,
    Performance,
    Provenance,
    RunRecord,
    RunStatus,
)
from moe_dispatch.evidence.training import Activation, TrainingIteration, TrainingRun, Window

LEVEL = "training_step"
RATIOS = (1.0, 0.99, 0.95, 0.90)
"""Step time of the second arm over the first's; the threshold is two percent."""
NOISES = ((0.003, 0.01), (0.015, 0.03), (0.06, 0.05))
"""(between launches, within a launch), standard deviations of the logarithm."""
LAUNCHES, VISITS, STEPS, WARM_UP = 5, 2, 40, 10
KINDS = ("winner", "tie", "inconclusive", "not_comparable")


def main() -> int:
    """Simulate, print the table, end with the RESULT line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--experiments", type=int, default=100, help="of each row")
    parser.add_argument("--resamples", type=int, default=1000, help="of each bootstrap")
    arguments = parser.parse_args()
    rng = np.random.default_rng(20261203)
    figures: dict[str, float] = {}
    print(f"{'true ratio':>10}{'between':>9}{'within':>8}" + "".join(f"{kind:>16}" for kind in (*KINDS, "wrong")))
    for between, within in NOISES:
        for ratio in RATIOS:
            shares = row(rng, ratio, between, within, arguments)
            print(
                f"{ratio:>10.2f}{between:>9.1%}{within:>8.1%}"
                + "".join(f"{shares[kind]:>16.0%}" for kind in (*KINDS, "wrong"))
            )
            figures |= {f"r{ratio:.2f}_b{between}_{kind}": round(share, 3) for kind, share in shares.items()}
    result = {
        "figures": figures,
        "hardware": {"cpu_count": os.cpu_count(), "machine": platform.machine()},
        "versions": {"python": platform.python_version(), "moe-dispatch": metadata.version("moe-dispatch")},
        "labels": ["simulated"],
    }
    print("RESULT", json.dumps(result))
    return 0


def row(
    rng: np.random.Generator, ratio: float, between: float, within: float, arguments: argparse.Namespace
) -> dict[str, float]:
    """Shares of the verdicts over many experiments with one truth."""
    counts: Counter[str] = Counter()
    for _ in range(arguments.experiments):
        records = [
            launch(name, rng, 1000 * mean * np.exp(rng.normal(0, between)), within, index)
            for index in range(LAUNCHES)
            for name, mean in (("alltoall", 1.0), ("hybridep", ratio))
        ]
        verdict = decide(records, simplicity={"alltoall": 0, "hybridep": 6}, resamples=arguments.resamples)
        counts[verdict.kind.value] += 1
        right = verdict.winner is None or (verdict.winner.dispatcher == "hybridep" and ratio < 1)
        counts["wrong"] += not right
    return {kind: counts[kind] / arguments.experiments for kind in (*KINDS, "wrong")}


def launch(name: str, rng: np.random.Generator, median_ms: float, within: float, index: int) -> RunRecord:
    """One training run of one arm; every field of its contract is known."""
    contract: dict[str, dict[str, object]] = {"workload": {}, "measure": {}, "site": {}, "stack": {}}
    for field in contract_table().required(frozenset({LEVEL})):
        section, _, key = field.partition(".")
        contract[section][key] = "given"
    contract["measure"] |= {"level": LEVEL, "visits": VISITS}
    contract["workload"]["routing"] = "natural"
    contract["site"]["hosts"] = ["n1", "n2"]
    times = median_ms * np.exp(rng.normal(0, within, STEPS))
    iterations = tuple(
        Iteration(pass_index=step * VISITS // (STEPS + 1), latency_us={"total": float(ms) * 1e3}, step=WARM_UP + step)
        for step, ms in enumerate(times, 1)
    )
    printed = tuple(TrainingIteration(iteration=step, elapsed_ms=1.0) for step in range(1, WARM_UP + STEPS + 1))
    return RunRecord(
        run_id=new_run_id(),
        session="simulated",
        stage="training",
        launch=index,
        processes=f"simulated-{index}",
        choice=Choice(dispatcher=name, knobs={"num_sms": 24} if name == "hybridep" else {}),
        status=RunStatus.OK,
        contract=Contract.model_validate(contract),
        correctness=Correctness(passed=True),
        performance=Performance(iterations=iterations, host_of_rank=()),
        training=TrainingRun(
            effective=name, activation=Activation(level="deduced"), window=Window(rule="given"), iterations=printed
        ),
        provenance=Provenance(created=datetime.now(timezone.utc), tool_version="simulated", host="simulated"),
    )


if __name__ == "__main__":
    raise SystemExit(main())
