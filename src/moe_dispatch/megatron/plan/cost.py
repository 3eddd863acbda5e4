"""What a plan costs, as a range with its basis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moe_dispatch.core.errors import UsageError, WorkloadError
from moe_dispatch.megatron.plan.model import Cost, Run, Stage
from moe_dispatch.site.hardware import find_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.workload.flops import model_flops_per_step
from moe_dispatch.workload.workload import Workload

_MFU = (0.10, 0.40)
"""Share of the dense bf16 peak that the bounds assume: from an untuned first run to the best published steps."""
_UNKNOWN_SECONDS = (5.0, 60.0)


def costs_of(
    runs: Sequence[Run],
    steps: Mapping[Stage, int],
    workload: Workload,
    site: Site,
    step_seconds: float | None,
    startup_seconds: float,
) -> tuple[Cost, ...]:
    """GPU-hours of every stage that has runs; the accepting stages count the baseline and one winner.

    Raises:
        UsageError: a time that is not positive.
    """
    if (step_seconds is not None and not step_seconds > 0) or not startup_seconds >= 0:
        raise UsageError(
            f"--step-seconds {step_seconds} must be above 0 and --startup-seconds {startup_seconds} at least 0"
        )
    low, high, basis = _step(workload, site, step_seconds)
    found = []
    for stage, length in steps.items():
        arms = list(dict.fromkeys(run.arm for run in runs if run.stage == stage))
        counted = arms[:2] if stage in ("accept", "natural") else arms
        count = sum(run.arm in counted for run in runs)
        hours = [count * (startup_seconds + length * seconds) * workload.layout.world / 3600 for seconds in (low, high)]
        if count:
            found.append(
                Cost(
                    stage=stage,
                    runs=count,
                    step_seconds=(round(low, 3), round(high, 3)),
                    gpu_hours=(round(hours[0], 2), round(hours[1], 2)),
                    basis=f"{basis}; {startup_seconds:g} s of start-up a run",
                )
            )
    return tuple(found)


def _step(workload: Workload, site: Site, given: float | None) -> tuple[float, float, str]:
    if given is not None:
        return given, given, f"{given:g} s a step, as given"
    try:
        flops = model_flops_per_step(workload.model, workload.seq_length, workload.global_batch)
        peak = find_hardware(site.gpu or "").bf16_tflops * 1e12 * workload.layout.world
    except (WorkloadError, UsageError):
        low, high = _UNKNOWN_SECONDS
        return low, high, f"step time not known, {low:g} to {high:g} s assumed: give --step-seconds"
    low, high = flops / peak / _MFU[1], flops / peak / _MFU[0]
    return low, high, f"model FLOPs at {_MFU[1]:.0%} to {_MFU[0]:.0%} of the dense bf16 peak; --step-seconds is better"
