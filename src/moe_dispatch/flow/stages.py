"""The measured stages of a `select`: which arms are screened, which of them decide, and the plan of each stage.

Screening compares every candidate with every value of its swept knobs on the exchange alone; deciding compares the
baseline with the best variant of each dispatcher on the whole MoE layer, in launches that did not choose the variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from moe_dispatch.bench.plan import ArmPlan, BenchPlan, Level
from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.choice import Choice, KnobValue
from moe_dispatch.core.errors import UnsupportedByBackend
from moe_dispatch.evidence.record import RunRecord, RunStatus
from moe_dispatch.flow.budget import median_total_s
from moe_dispatch.workload.workload import Workload

BASELINE = "alltoall"
SCREEN, DECIDE = "screen", "decide"
VARIANT_GAIN = 0.05
"""How much faster than the default knobs a variant must be in screening to take their place."""

DTYPES: Mapping[str, Literal["float32", "bfloat16", "float16"]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}

_WARMUP_GPU, _VISITS_GPU, _ITERATIONS_GPU = 5, 4, 10


@dataclass(frozen=True, kw_only=True)
class StageSite:
    """What both stages share.

    Fields:
        site, stack: contract fields known before anything runs.
        tokens: tokens per rank that are run; None runs all that the workload asks for.
    """

    session: str
    device: Literal["cpu", "cuda"]
    world: int
    ranks_per_domain: int | None
    tokens: int | None
    site: Mapping[str, object]
    stack: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Screened:
    """Best variant of one dispatcher, and its screening time in seconds."""

    choice: Choice
    seconds: float


def sweep(spec: BackendSpec, fixed: Mapping[str, KnobValue] | None = None, *, one_domain: bool = False) -> list[Choice]:
    """The default variant first, then one variant for each other value of each swept knob.

    Args:
        fixed: knobs that the user set; they are kept in every variant and not swept.
        one_domain: all ranks share a domain, so knobs of the traffic between domains change nothing.
    """
    base = Choice(dispatcher=spec.name, knobs=dict(fixed or {}))
    found = [base]
    for name, knob in spec.knobs.items():
        if name in base.knobs or (one_domain and knob.between_domains):
            continue
        found += [
            Choice(dispatcher=spec.name, knobs={**base.knobs, name: value})
            for value in knob.sweep
            if value != knob.default
        ]
    return found


def arm_of(spec: BackendSpec, choice: Choice) -> ArmPlan:
    """The arm that measures a choice.

    Raises:
        UnsupportedByBackend: this release holds no adapter for the backend.
    """
    if spec.target is None:
        raise UnsupportedByBackend(
            f"{spec.name} cannot be measured: this release holds no adapter for it",
            f"emit its configuration with `moe-dispatch emit {spec.name}` and compare it in training",
        )
    open_sm = [name for name, knob in spec.knobs.items() if knob.sm and not knob.sweep and name not in choice.knobs]
    return ArmPlan(choice=choice, target=spec.target, labels=("untuned",) if open_sm else ())


def dtype_of(workload: Workload) -> Literal["float32", "bfloat16", "float16"]:
    """The torch dtype that is measured.

    Raises:
        UnsupportedByBackend: fp8 payloads.
    """
    if workload.precision not in DTYPES:
        raise UnsupportedByBackend(
            f"precision {workload.precision} cannot be measured by this release; it can: {', '.join(DTYPES)}",
            "pass --precision bf16",
        )
    return DTYPES[workload.precision]


def stage_plan(
    stage: str,
    level: Level,
    arms: Sequence[ArmPlan],
    workload: Workload,
    routings: Sequence[str],
    shared: StageSite,
    passes: tuple[int, int, int] | None = None,
) -> BenchPlan:
    """The plan of one stage.

    Args:
        passes: (warm-up, visits, iterations of a visit); None takes what suits a GPU.
    """
    warmup, visits, iterations = passes or (_WARMUP_GPU, _VISITS_GPU, _ITERATIONS_GPU)
    return BenchPlan(
        session=shared.session,
        stage=stage,
        launch=0,
        level=level,
        arms=tuple(arms),
        model=workload.model,
        world=shared.world,
        tokens_per_rank=workload.tokens_per_rank,
        fitted_tokens=shared.tokens,
        routings=tuple(routings),
        dtype=dtype_of(workload),
        device=shared.device,
        ranks_per_domain=shared.ranks_per_domain,
        warmup=warmup,
        visits=visits,
        iterations=iterations,
        workload=known(workload.contract_fields()),
        site=dict(shared.site),
        stack=dict(shared.stack),
    )


def known(fields: Mapping[str, object]) -> dict[str, object]:
    """Contract fields in which "there is none" (no expert groups, no virtual stages) is said, not left unknown."""
    return {key: "none" if value is None else value for key, value in fields.items()}


def stack_fields(fingerprint: Mapping[str, str | None]) -> dict[str, object]:
    """Versions for the contract: absent packages as such, but NCCL only where a package names it.

    A container's torch may bring its own NCCL, which the ranks then report.
    """
    return known({key: value for key, value in fingerprint.items() if value is not None or key != "nccl"})


def best_variants(records: Sequence[RunRecord]) -> list[Screened]:
    """Best variant of each dispatcher among ok records: the baseline first, the others from fast to slow.

    The default knobs stand unless another variant is faster by `VARIANT_GAIN`: one launch does not tell less apart.
    """
    timed = [(record.choice, median_total_s(record)) for record in records if record.status is RunStatus.OK]
    best: dict[str, Screened] = {}
    for choice, seconds in timed:
        kept = best.get(choice.dispatcher)
        default = next((own for other, own in timed if other.dispatcher == choice.dispatcher), seconds)
        bar = min(kept.seconds, default * (1 - VARIANT_GAIN)) if kept else seconds
        if kept is None or seconds < bar:
            best[choice.dispatcher] = Screened(choice=choice, seconds=seconds)
    return sorted(best.values(), key=lambda entry: (entry.choice.dispatcher != BASELINE, entry.seconds))
