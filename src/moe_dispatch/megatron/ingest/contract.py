"""The contract of a training run: every field that could explain a difference, unknown where nothing says it.

Fields and their names in Megatron are data: `contract_fields.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.evidence.record import Contract
from moe_dispatch.megatron.ingest.timeline import Timeline
from moe_dispatch.megatron.ingest.view import Settings, plain, precision_of, routing_of, shape_of
from moe_dispatch.site.hardware import Hardware
from moe_dispatch.workload.layout import ParallelLayout

LEVEL = "training_step"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "bfloat16"}
_BENCHMARK_TOKENIZERS = ("NullTokenizer", "NullMultimodalTokenizer")


class ContractFields(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: dict[str, tuple[str, ...]]
    measure: dict[str, tuple[str, ...]]
    environment: tuple[str, ...]
    unknown: dict[str, tuple[str, ...]]


@cache
def load_contract_fields() -> ContractFields:
    """Read `contract_fields.yaml`."""
    import yaml

    text = resources.files("moe_dispatch.megatron.ingest").joinpath("contract_fields.yaml").read_text(encoding="utf-8")
    return ContractFields.model_validate(yaml.safe_load(text))


def contract_of(
    settings: Settings,
    facts: Mapping[str, Any],
    timeline: Timeline,
    environment: Mapping[str, str] | None,
    gpu: Hardware | None,
) -> Contract:
    """The contract.

    Args:
        facts: what the log says besides its configuration: `framework`, `world`, and versions by stack field.
        environment: of the run, where it is known; a variable that it lacks is then `unset`.
        gpu: where the user names it.
    """
    fields = load_contract_fields()
    workload = {name: _known(settings, sources) for name, sources in fields.workload.items()}
    world = facts["world"]
    shape = shape_of(settings)
    workload |= {
        "model": shape.name if shape is not None else None,
        "num_moe_layers": shape.num_moe_layers if shape is not None else None,
        "activation": shape.activation if shape is not None else None,
        "dispatch_width": shape.dispatch_width if shape is not None else None,
        "world": world,
        "dtype": _DTYPES.get(precision_of(settings) or ""),
        "precision": precision_of(settings),
        "routing": routing_of(settings),
        **_layout(settings, world),
    }
    measure = {name: _known(settings, sources) for name, sources in fields.measure.items()}
    measure |= {"level": LEVEL, "reduction": "barrier_then_last_rank", "window": timeline.window.rule}
    if measure.get("train_iters") is None:
        measure["train_iters"] = timeline.planned
    if measure.get("log_interval") is None:
        measure["log_interval"] = timeline.log_interval if timeline.printed else None
    site: dict[str, Any] = dict.fromkeys(fields.unknown["site"])
    site |= {"device": "cuda", "ranks": world, "device_name": gpu.title if gpu is not None else None}
    stack: dict[str, Any] = dict.fromkeys(fields.unknown["stack"])
    stack |= {"framework": facts["framework"] or None, "torch": None, "megatron_core": None, **facts["versions"]}
    stack |= {name: environment.get(name, "unset") if environment is not None else None for name in fields.environment}
    return Contract(workload=workload, measure=measure, site=site, stack=stack)


def labels_of(settings: Settings) -> set[str]:
    """`benchmark_only` where routing is forced or the data are made up."""
    forced = routing_of(settings) not in (None, "natural")
    mock = settings.get("mock_data") is True or settings.get("tokenizer_type") in _BENCHMARK_TOKENIZERS
    return {"benchmark_only"} if forced or mock else set()


def _known(settings: Settings, sources: tuple[str, ...]) -> Any:
    """A known value, `none` where it is known to be None, and None where it is unknown."""
    found = settings.find(*sources)
    if found is None:
        return None
    return "none" if found.value is None or found.value == [] else plain(found.value)


def _layout(settings: Settings, world: int | None) -> dict[str, Any]:
    """Sizes that follow from others: data-parallel size, tokens that a rank dispatches in one micro-batch."""
    sizes = {
        "tp": settings.integer("tensor_model_parallel_size"),
        "pp": settings.integer("pipeline_model_parallel_size"),
        "cp": settings.integer("context_parallel_size"),
        "ep": settings.integer("expert_model_parallel_size"),
    }
    known = {name: size for name, size in sizes.items() if size is not None}
    if world is None or len(known) < len(sizes):
        return {"dp": None, "tokens_per_rank": None}
    etp = settings.integer("expert_tensor_parallel_size")
    split = settings.get("sequence_parallel") is True
    try:
        layout = ParallelLayout(world=world, etp=etp, sequence_parallel=split, **known)
    except WorkloadError:
        return {"dp": None, "tokens_per_rank": None}
    sequence = settings.integer("seq_length", "dataset.seq_length", "dataset.sequence_length")
    micro = settings.integer("micro_batch_size", "train.micro_batch_size")
    tokens = layout.tokens_per_rank(sequence, micro) if sequence and micro else None
    return {"dp": layout.dp, "tokens_per_rank": tokens}
