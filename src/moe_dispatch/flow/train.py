"""Training runs of this package's own model: `bench --level train` and the runs of `smoke`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.train_plan import TrainPlan, warmup_steps
from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UnsupportedByBackend, UsageError
from moe_dispatch.evidence.ids import new_session_id
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.evidence.store import Store
from moe_dispatch.flow.events import Listener
from moe_dispatch.flow.gates import record_unavailable
from moe_dispatch.flow.measure import Session, leading
from moe_dispatch.flow.measure_chosen import chosen_arms
from moe_dispatch.flow.request import NO_SKEW, MeasureRequest
from moe_dispatch.flow.setup import Setup, follow_leader, load, prepare
from moe_dispatch.flow.stages import BASELINE, StageSite, arm_of, stack_fields, stage_plan
from moe_dispatch.report.smoke import TrainingRow, training_rows
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.workload.trainable import (
    NATURAL,
    canonical_routing,
    check_trainable,
    parameters_per_rank,
    parse_scale,
    scaled,
)
from moe_dispatch.workload.training_text import read_text
from moe_dispatch.workload.workload import Workload

Recompute = Literal["none", "selective", "full"]
AUTO, WHOLE = "auto", "none"
_CPU_SCALE = "layers=2,hidden=256"
_CPU_SEQUENCE = 256
_BYTES_PER_PARAMETER = 24
"""Optimizer state, weights and gradients (20, moe/optimizer.py), and room for activations and the parity check."""
_MEMORY_SHARE = 0.6


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What to train.

    Fields:
        measure: workload, layout, nodes, dispatchers; its routing may be `natural`, its skew is not used.
        stage: name of the stage in the records.
        scale: text of `--scale`; `auto` shrinks the model until it fits the machine, `none` leaves it whole.
        warmup: leading steps outside the window; None applies the declared rule.
        absent: what to do about backends that cannot run: `record` them with their gate, or `refuse`.
    """

    measure: MeasureRequest
    stage: str = "train"
    scale: str = AUTO
    steps: int = 20
    warmup: int | None = None
    global_batch: int | None = None
    text: str | None = None
    recompute: Recompute = "none"
    learning_rate: float = 1e-3
    aux_loss_coeff: float = 0.0
    absent: Literal["record", "refuse"] = "refuse"

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise UsageError(f"--steps {self.steps} must be at least 2", "one step is warm-up, one is timed")
        if self.warmup is not None and not 1 <= self.warmup < self.steps:
            raise UsageError(
                f"--warmup {self.warmup} must be from 1 to {self.steps - 1}", f"--steps {self.steps} include it"
            )
        if not 0 < self.learning_rate < 1:
            raise UsageError(f"--learning-rate {self.learning_rate} must be above 0 and below 1")
        if not 0 <= self.aux_loss_coeff < 1:
            raise UsageError(f"--aux-loss {self.aux_loss_coeff} must be at least 0 and below 1")

    @property
    def routing(self) -> str | None:
        """As the user gave it."""
        given = self.measure.sizes.get("routing")
        return None if given is None else str(given)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Records of the session with their summary, what was trained, and where the records are."""

    session: str
    store: str
    model: str
    tokens_per_rank: int
    window: str
    records: tuple[RunRecord, ...]
    rows: tuple[TrainingRow, ...]


def recompute_of(text: str) -> Recompute:
    """The user's word.

    Raises:
        UsageError: another one.
    """
    for known in get_args(Recompute):
        if text == known:
            word: Recompute = known
            return word
    raise UsageError(
        f"--recompute {text!r} is not known", "use none, selective (the MoE layers) or full (whole blocks)"
    )


def run_training(request: TrainRequest, listener: Listener) -> TrainResult | str:
    """Train every chosen arm.

    Returns:
        The result; on a node other than 0 the text that node 0 published.

    Raises:
        MoeDispatchError: one of its classes, for anything expected.
    """
    try:
        asked = _without_natural(request)
        if not asked.leads:
            return follow_leader(asked, listener)
        _check(request, asked)
        setup = _fit(request, prepare(asked, listener), listener)
        store = Store(asked.store_path)
        store.check_writable()
        shared = StageSite(
            session=new_session_id(),
            device=setup.device,
            world=setup.world,
            ranks_per_domain=asked.ranks_per_domain,
            tokens=None,
            site={},
            stack=stack_fields(setup.stack),
        )
        choices, gated = _choices(request, setup)
        plan = _plan(request, setup, shared, choices)
        with leading(setup, listener) as leader:
            missing = record_unavailable(store, plan, gated, ())
            session = Session(asked, setup, shared, store, leader.run if leader else None, listener)
            records = (*session.bench(plan, asked.launches), *missing)
            if leader:
                leader.finish(f"session {shared.session}: {len(records)} records on node 0")
        assert plan.train is not None
        return TrainResult(
            session=shared.session,
            store=str(store.path),
            model=plan.model.name,
            tokens_per_rank=plan.tokens_per_rank,
            window=plan.train.window,
            records=records,
            rows=training_rows(records),
        )
    finally:
        listener.close()


def _without_natural(request: TrainRequest) -> MeasureRequest:
    """The request for the stages before training, which know forced routing only."""
    if request.routing is not None:
        canonical_routing(request.routing)
    sizes = dict(request.measure.sizes)
    if request.routing == NATURAL:
        sizes["routing"] = None
    if request.global_batch is not None:
        sizes["global_batch"] = request.global_batch
    return replace(request.measure, sizes=sizes, skew=NO_SKEW)


def _check(request: TrainRequest, asked: MeasureRequest) -> None:
    """Refuse what cannot be trained before anything is probed.

    Raises:
        UsageError, WorkloadError: see `check_trainable`; parallelism other than DP x EP, an unreadable text.
    """
    workload = load(asked)
    fields = {} if request.scale in (AUTO, WHOLE) else parse_scale(request.scale)
    check_trainable(scaled(workload.model, fields or ({"vocab_size": 256} if request.scale == AUTO else {})))
    layout = workload.layout
    others = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "etp": layout.expert_tp}
    for name, size in others.items():
        if size != 1:
            raise UsageError(
                f"{name}={size}: the model trained here has data and expert parallelism only",
                f"leave --{name} out; `moe-dispatch plan` writes the training A/B for that layout",
            )
    if workload.precision == "fp8":
        raise UsageError("precision fp8 is not built into the model trained here", "pass --precision bf16")
    read_text(request.text)


def _fit(request: TrainRequest, setup: Setup, listener: Listener) -> Setup:
    """The setup with the model that is really trained."""
    workload = setup.workload
    text = _auto_scale(workload, setup) if request.scale == AUTO else request.scale
    fields = {} if text == WHOLE else parse_scale(text)
    changes: dict[str, Any] = {"model": scaled(workload.model, fields)}
    if request.scale == AUTO and setup.device == "cpu" and request.measure.sizes.get("seq_length") is None:
        changes["seq_length"] = min(workload.seq_length, _CPU_SEQUENCE)
    made = Workload.model_validate({**dict(workload), **changes})
    check_trainable(made.model)
    listener.note(f"training {made.model.name}, {made.tokens_per_rank} tokens a rank and micro-batch")
    return replace(setup, workload=made, routings=(request.routing or workload.routing,))


def _auto_scale(workload: Workload, setup: Setup) -> str:
    """On a CPU a fixed small model; on a GPU as many layers as its memory holds, at full width."""
    if setup.device == "cpu":
        return _CPU_SCALE
    memory = setup.site.gpu_memory_bytes or 0
    model = workload.model
    for layers in range(model.num_layers, 0, -1):
        trial = scaled(model, {"num_layers": layers, **_vocabulary(model.vocab_size)})
        if parameters_per_rank(trial, workload.layout.ep) * _BYTES_PER_PARAMETER <= _MEMORY_SHARE * memory:
            break
    return f"layers={layers}" + (f",vocab={model.vocab_size}" if model.vocab_size else "")


def _vocabulary(size: int | None) -> dict[str, int]:
    return {} if size is None else {"vocab_size": size}


def _choices(request: TrainRequest, setup: Setup) -> tuple[list[Choice], Mapping[str, GateResult]]:
    """(arms to train, gates of those that cannot be).

    Raises:
        UnsupportedByBackend: a named backend cannot run here and absences are refused.
    """
    chosen = chosen_arms(request.measure, setup)
    if request.absent == "refuse":
        return chosen, {}
    if all(choice.label != BASELINE for choice in chosen):
        chosen.insert(0, Choice(dispatcher=BASELINE))
    named = {choice.dispatcher for choice in chosen} if request.measure.dispatchers else set(setup.specs)
    gated = {name: setup.gates[name] for name in setup.gates if name in named and not setup.gates[name].available}
    kept = [choice for choice in chosen if choice.dispatcher not in gated]
    for choice in kept:
        if setup.specs[choice.dispatcher].target is None:
            raise UnsupportedByBackend(
                f"{choice.dispatcher} is here, but this release holds no adapter that could train with it",
                f"emit its configuration with `moe-dispatch emit {choice.dispatcher}` and compare it in training",
            )
    return kept, gated


def _plan(request: TrainRequest, setup: Setup, shared: StageSite, choices: list[Choice]) -> BenchPlan:
    workload = setup.workload
    arms = [arm_of(setup.specs[choice.dispatcher], choice) for choice in choices]
    base = stage_plan(request.stage, "exchange", arms, workload, setup.routings, shared)
    train = TrainPlan(
        steps=request.steps,
        warmup=warmup_steps(request.steps) if request.warmup is None else request.warmup,
        seq_length=workload.seq_length,
        micro_batch=workload.micro_batch,
        global_batch=workload.global_batch,
        text=request.text,
        recompute=request.recompute,
        aux_loss_coeff=request.aux_loss_coeff,
        learning_rate=request.learning_rate,
        scaled="[" in workload.model.name,
    )
    return BenchPlan.model_validate({**dict(base), "level": "train", "train": train})
