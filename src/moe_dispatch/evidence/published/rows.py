"""One row of published evidence, by kind: what a public source states, in this package's names and units.

The same classes serve the commands (plain construction, fast) and the validator (`validate`, strict types). A value of
None means that the source does not state it. `tflops_per_gpu` is what the framework printed, and how it counts FLOPs
differs between releases; step times and tokens/s do not have that trouble.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Basis = Literal["stated", "inferred", "unknown"]
Routing = Literal["force_balanced", "dropless", "capacity_dropped", "unknown"]

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}
"""How the validator reads a row: no unknown field, no conversion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Misfit:
    """One thing in a row that does not fit: the check that says so, and the numbers."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    check: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What every kind shares.

    Fields:
        id: stable name, unique over all kinds.
        model: catalogue name where the catalogue has the model, else a name of the same form; empty without a model.
        hardware: key of the hardware catalogue, or a key of the same form; empty where the row is for any.
        source: `owner/repo@commit:path`, a URL, or the name of a document.
        where: line, item or section of the source.
        date: ISO day or month; empty when the source gives none. `date_basis` says what it is the date of.
        labels: what travels with every number (`forced_balance`, `benchmark_only`, `single_run`, ...).
        notes: short remarks.
        findings: what the validator finds wrong with the row, as shipped.
    """

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    id: str
    model: str = ""
    hardware: str = ""
    source: str
    where: str = ""
    date: str = ""
    date_basis: Literal["", "run", "release", "commit", "publication", "thread"] = ""
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[Misfit, ...] = ()

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """Every dispatcher that the row is about."""
        return ()

    @property
    def basis(self) -> Basis:
        """How they are known; the weakest, where there are two."""
        return "stated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(Row):
    """A row with the layout, batch and mode of a training run.

    Fields:
        precision: `bf16`, `fp8` (recipe not stated), `fp8_mx`, `fp8_current`, `fp8_blockwise`, `fp8_delayed`, `nvfp4`.
        seq_length: tokens; micro_batch, global_batch: sequences.
        vpp: virtual stages of one pipeline rank; etp: expert tensor parallel size.
        cuda_graph: who captures (`none`, `transformer_engine`, `local`, `full_iteration`), `cuda_graph_scopes`: what.
        recompute: modules, or `off`, `full`, `selective`.
        fabric: between nodes, where the source says.
    """

    precision: str | None = None
    gpus: int | None = None
    seq_length: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    cuda_graph: str | None = None
    cuda_graph_scopes: tuple[str, ...] = ()
    ep_overlap: bool | None = None
    recompute: str | None = None
    routing: Routing = "unknown"
    fabric: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRow(Settings):
    """A published step of a training run (`train_step`) or of one MoE layer (`moe_layer`).

    Fields:
        group: which publication series.
        framework: who trained.
        dispatcher_stated: as the source names it next to the number; None when it does not.
        dispatcher_inferred: deduced from a recipe of the same tag and layout; never where one is stated.
        inference: how good that deduction is; `inference_source`: the recipe it rests on.
        stated_in: kind of place where the source names it; provider: the build or transport behind the name.
        num_sms: SMs given to dispatch and combine.
        fsdp: fully sharded data parallel size; mtp_layers: multi-token prediction layers that were trained.
        step_time_s: seconds of one training step; forward_ms, backward_ms: of one layer.
        tokens_per_s: of all GPUs together.
        mfu: fraction of the peak that the source used.
        communication_s: seconds of communication kernels in one step; communication_hidden: fraction of them that ran
            under computation.
        run_commit: of the framework.
    """

    kind: ClassVar[str] = "training"

    group: str
    measured: Literal["train_step", "moe_layer"] = "train_step"
    framework: str = ""
    dispatcher_stated: str | None = None
    dispatcher_inferred: str | None = None
    inference: str = ""
    inference_source: str = ""
    stated_in: str = ""
    provider: str = ""
    num_sms: int | None = None
    fsdp: int | None = None
    mtp_layers: int | None = None
    step_time_s: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    tflops_per_gpu: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    communication_s: float | None = None
    communication_hidden: float | None = None
    peak_memory_bytes: int | None = None
    release: str = ""
    container: str = ""
    run_commit: str = ""

    @property
    def dispatcher(self) -> str:
        """Stated, else inferred, else `unknown`; `basis` says which."""
        return self.dispatcher_stated or self.dispatcher_inferred or "unknown"

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """The one dispatcher."""
        return (self.dispatcher,)

    @property
    def basis(self) -> Basis:
        """How the dispatcher is known."""
        if self.dispatcher_stated:
            return "stated"
        return "inferred" if self.dispatcher_inferred else "unknown"

    @property
    def step_s(self) -> float | None:
        """Seconds of a step: published, else global batch x sequence / tokens per second, else None."""
        if self.step_time_s is not None:
            return self.step_time_s
        if self.global_batch and self.seq_length and self.tokens_per_s_per_gpu and self.gpus:
            return self.global_batch * self.seq_length / (self.tokens_per_s_per_gpu * self.gpus)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeRow(Settings):
    """A recipe in force: configuration that its owner runs, not a measurement.

    Fields:
        recipe: the function's name. series: `performance` (tuned for a benchmark) or `library` (for users).
        dispatcher: the one in effect. `dispatcher_from`: set by the recipe itself, or the framework's default for the
            model.
        num_sms: in effect for that dispatcher; None where the recipe leaves it to the library.
        knobs: framework fields that the recipe sets (Megatron-Core names).
        environment: variables that it exports.
    """

    kind: ClassVar[str] = "recipe"

    recipe: str
    series: Literal["performance", "library"]
    family: str
    task: str = ""
    variant: str = ""
    dispatcher: str
    dispatcher_from: Literal["recipe", "framework default", "unknown"] = "recipe"
    num_sms: int | None = None
    knobs: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """The one in effect."""
        return (self.dispatcher,)

    @property
    def basis(self) -> Basis:
        """A recipe states its dispatcher; a framework default behind it is an inference."""
        if self.dispatcher == "unknown":
            return "unknown"
        return "stated" if self.dispatcher_from == "recipe" else "inferred"


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroRow(Row):
    """A published dispatch and combine measurement without a model around it.

    Fields:
        bandwidth_kind: what the bandwidth's numerator counts, in the source's words; numbers of different kinds are
            not comparable.
        dispatch_gbytes_per_s, combine_gbytes_per_s: as printed, 1e9 bytes a second.
        dispatch_us, combine_us: microseconds. mode: `normal`, `low_latency`, ...
    """

    kind: ClassVar[str] = "micro"

    dispatcher: str
    provider: str = ""
    ep: int
    fabric: str = ""
    mode: str = ""
    level: str = ""
    num_sms: int | None = None
    precision: str | None = None
    combine_precision: str | None = None
    tokens_per_rank: int | None = None
    hidden: int | None = None
    topk: int | None = None
    num_experts: int | None = None
    bandwidth_kind: str = ""
    dispatch_gbytes_per_s: float | None = None
    combine_gbytes_per_s: float | None = None
    dispatch_us: float | None = None
    combine_us: float | None = None

    @property
    def dispatchers(self) -> tuple[str, ...]:
        """The one that was measured."""
        return (self.dispatcher,)
