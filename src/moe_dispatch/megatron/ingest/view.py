"""The configuration of a run as one view over all its dumps, and the model shape and labels that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.evidence.training import SeenValue
from moe_dispatch.megatron.ingest.dumps import STAGES, Dump, Stage
from moe_dispatch.megatron.settings import MegatronConfig, Origin, Value
from moe_dispatch.megatron.settings_fields import Scalar, settings_fields
from moe_dispatch.megatron.settings_fields import Setting as FieldValue
from moe_dispatch.workload.catalogue import list_models
from moe_dispatch.workload.model import MlaShape, ModelShape, RouterShape

CORE_DEFAULT = "core default"
"""Stands for the default of a field that a complete Configuration Summary does not list."""
VALIDATED: tuple[Stage, ...] = ("arguments", "saved_config", "summary")
"""Stages after which the framework replaces no dispatcher."""
_CANONICAL = {
    "num_experts": "num_moe_experts",
    "train.micro_batch_size": "micro_batch_size",
    "train.global_batch_size": "global_batch_size",
    "train.train_iters": "train_iters",
    "dataset.seq_length": "seq_length",
    "dataset.sequence_length": "seq_length",
}
DISPATCHER_FIELDS = (
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_enable_deepep",
    "moe_flex_dispatcher_num_sms",
    "moe_deepep_num_sms",
    "moe_hybridep_num_sms",
    "moe_hybridep_num_sms_preprocessing",
)


class Setting(NamedTuple):
    """A value and the stage at which it was last seen."""

    value: Any
    stage: Stage


class Settings:
    """All dumps of a run, later stages over earlier ones.

    Two dumps of one stage (a restart) must agree: a field in which they differ is unknown, named in `contradictions`.
    """

    def __init__(self, dumps: Sequence[Dump], core_version: str | None = None) -> None:
        self._core_version = core_version
        self._dumps = sorted(dumps, key=lambda dump: STAGES.index(dump.stage))
        self._values: dict[str, Setting] = {}
        self.contradictions: list[str] = []
        for dump in self._dumps:
            for name, value in dump.values.items():
                known = self._values.get(name)
                if known is not None and known.stage == dump.stage and known.value != value:
                    self.contradictions.append(name)
                self._values[name] = Setting(value, dump.stage)
        for name in self.contradictions:
            self._values.pop(name, None)
        self._defaults_omitted = any(dump.defaults_omitted for dump in self._dumps)

    @property
    def stages(self) -> frozenset[Stage]:
        """Stages of which something was seen."""
        return frozenset(dump.stage for dump in self._dumps)

    @property
    def last_stage(self) -> Stage | None:
        """The stage closest to what was built."""
        return self._dumps[-1].stage if self._dumps else None

    def find(self, *names: str) -> Setting | None:
        """The first of these fields that is known.

        With a complete summary, a model field that it omits has its default, whatever an earlier stage said.
        """
        for name in names:
            found = self._values.get(name)
            overruled = self._defaults_omitted and name in settings_fields()
            if found is not None and not (overruled and found.stage != "summary"):
                return found
        if self._defaults_omitted:
            for name in names:
                if name not in self.contradictions and "." not in name:
                    known = settings_fields().get(name)
                    return Setting(known.default_in(self._core_version) if known else CORE_DEFAULT, "summary")
        return None

    def get(self, *names: str) -> Any:
        """The value of the first known field; None where unknown or None."""
        found = self.find(*names)
        return found.value if found is not None else None

    def integer(self, *names: str) -> int | None:
        """A positive integer, or None."""
        value = self.get(*names)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def config(
        self, framework: str, world: int | None, env: Mapping[str, str], *, until: Stage | None = None
    ) -> MegatronConfig:
        """The form that `effective_dispatcher` and the rules of `lint` take.

        Args:
            until: only what was seen up to this stage, as the request of a later rewriting.
        """
        dumps = [dump for dump in self._dumps if until is None or STAGES.index(dump.stage) <= STAGES.index(until)]
        values: dict[str, Value] = {}
        for dump in dumps:
            if dump.defaults_omitted:
                values = {name: value for name, value in values.items() if name not in settings_fields()}
            for name, value in dump.values.items():
                if name not in self.contradictions:
                    values[_CANONICAL.get(name, name)] = Value(_setting(value), Origin("log", dump.stage))
        last = dumps[-1] if dumps else None
        return MegatronConfig(
            values=values,
            env=env,
            framework="megatron-bridge" if framework == "megatron-bridge" else "megatron-lm",
            launcher="unknown" if framework == "megatron-bridge" else "pretrain",
            stage="validated" if last is not None and last.stage in VALIDATED else "requested",
            complete=last is not None and last.complete,
            open_fields=frozenset(self.contradictions),
            core_version=self._core_version,
            world_size=world,
        )

    def seen(self) -> tuple[SeenValue, ...]:
        """Dispatcher fields at every stage that named them."""
        return tuple(
            SeenValue(field=name, value=plain(dump.values[name]), stage=dump.stage)
            for name in DISPATCHER_FIELDS
            for dump in self._dumps
            if name in dump.values
        )


def routing_of(settings: Settings) -> str | None:
    """Canonical routing mode; None where unknown. Forced balance and natural routing are different workloads."""
    forced, biased = settings.find("moe_router_force_load_balancing"), settings.find("moe_router_force_biased")
    if forced is None:
        return None
    if biased is not None and isinstance(biased.value, int | float) and not isinstance(biased.value, bool):
        return f"biased:{biased.value:g}"
    return "force_balanced" if forced.value else "natural"


def precision_of(settings: Settings) -> str | None:
    """`bf16`, `fp16`, `fp32` or `fp8` (fp8 over bf16)."""
    fp8, bf16, fp16 = (settings.find(name) for name in ("fp8", "bf16", "fp16"))
    if fp8 is not None and fp8.value not in (None, False, CORE_DEFAULT):
        return "fp8"
    if bf16 is not None and bf16.value is True:
        return "bf16"
    if fp16 is not None and fp16.value is True:
        return "fp16"
    return "fp32" if bf16 is not None and fp16 is not None and CORE_DEFAULT not in (bf16.value, fp16.value) else None


def shape_of(settings: Settings) -> ModelShape | None:
    """The model's sizes, named after the catalogue's model of the same sizes; None where a size is unknown."""
    hidden, layers = settings.integer("hidden_size"), settings.integer("num_layers")
    experts, topk = settings.integer("num_moe_experts", "num_experts"), settings.integer("moe_router_topk")
    if hidden is None or layers is None or experts is None or topk is None:
        return None
    ffn = settings.integer("ffn_hidden_size")
    moe_ffn = settings.integer("moe_ffn_hidden_size") or ffn
    moe_layers = _moe_layers(settings.get("moe_layer_freq"), layers)
    if moe_ffn is None or moe_layers is None:
        return None
    shared = settings.integer("moe_shared_expert_intermediate_size") or 0
    heads = settings.integer("num_attention_heads")
    grouped = settings.get("group_query_attention")
    groups = heads if grouped is False else settings.integer("num_query_groups") or heads
    sizes = (hidden, layers, experts, topk, moe_ffn)
    try:
        return ModelShape(
            name=_catalogue_name(sizes) or "h{}-l{}-e{}-k{}-f{}".format(*sizes),
            hidden=hidden,
            num_layers=layers,
            num_moe_layers=moe_layers,
            num_experts=experts,
            topk=topk,
            moe_ffn_hidden=moe_ffn,
            shared_expert_ffn_hidden=shared,
            ffn_hidden=ffn,
            activation="squared_relu" if settings.get("squared_relu") is True else "swiglu",
            attention=_attention(settings),
            num_attention_heads=heads,
            num_query_groups=groups,
            kv_channels=settings.integer("kv_channels") or (hidden // heads if heads else None),
            vocab_size=settings.integer("vocab_size"),
            router=RouterShape(),
            mla=_mla(settings),
            moe_latent_size=settings.integer("moe_latent_size"),
            mtp_layers=settings.integer("mtp_num_layers") or 0,
            source="training log",
        )
    except (WorkloadError, ValueError):
        return None


def padded_vocabulary(settings: Settings) -> int | None:
    """Rows of the output matrix: rounded up to `make_vocab_size_divisible_by` times the tensor-parallel size."""
    padded, vocabulary = settings.integer("padded_vocab_size"), settings.integer("vocab_size")
    if padded is not None or vocabulary is None:
        return padded
    unit = (settings.integer("make_vocab_size_divisible_by") or 128) * (
        settings.integer("tensor_model_parallel_size") or 1
    )
    return -(-vocabulary // unit) * unit


def _moe_layers(frequency: Any, layers: int) -> int | None:
    """`moe_layer_freq`: every N-th layer, or a list with 1 for each MoE layer (also written as a Python expression)."""
    if frequency is None or frequency == CORE_DEFAULT or frequency == 1:
        return layers
    if isinstance(frequency, int) and not isinstance(frequency, bool) and frequency > 1:
        return -(-layers // frequency)
    if isinstance(frequency, list | tuple) and len(frequency) == layers and set(frequency) <= {0, 1}:
        return sum(frequency) or None
    return None


def _attention(settings: Settings) -> Any:
    variant = settings.get("experimental_attention_variant")
    others = ("is_hybrid_model", "linear_attention_freq")
    hybrid = any(settings.get(name) not in (None, False, CORE_DEFAULT) for name in others)
    if hybrid or variant not in (None, CORE_DEFAULT):
        return "other"
    return "mla" if settings.get("multi_latent_attention") is True else "gqa"


def _mla(settings: Settings) -> MlaShape | None:
    if _attention(settings) != "mla":
        return None
    names = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    sizes = {name: settings.integer(name) for name in names}
    if None in sizes.values():
        return None
    return MlaShape.model_validate({**sizes, "q_lora_rank": settings.integer("q_lora_rank")})


def _catalogue_name(sizes: tuple[int, ...]) -> str | None:
    for entry in list_models():
        shape = entry.shape
        if shape is None:
            continue
        if sizes == (shape.hidden, shape.num_layers, shape.num_experts, shape.topk, shape.moe_ffn_hidden):
            return entry.name
    return None


def _setting(value: Any) -> FieldValue:
    """Scalars and tuples of scalars."""
    if isinstance(value, list | tuple | set):
        return tuple(_scalar(one) for one in value)
    return _scalar(value)


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def plain(value: Any) -> Any:
    """JSON scalars and lists; anything else as text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple | set):
        return [plain(one) for one in value]
    return str(value)
