"""From a catalogue shape to one that is trained here: `--scale` shrinks it, and what cannot be built is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.model import ModelShape
from moe_dispatch.workload.routing import FORMS, RoutingSpec

NATURAL = "natural"
"""Routing by the router's own choices."""

BYTE_VOCABULARY = 256
"""Texts are read as bytes, so a model needs at least this many entries."""

SCALE_KEYS: Mapping[str, str] = {
    "layers": "num_layers",
    "hidden": "hidden",
    "experts": "num_experts",
    "topk": "topk",
    "ffn": "moe_ffn_hidden",
    "dense_ffn": "ffn_hidden",
    "shared_ffn": "shared_expert_ffn_hidden",
    "heads": "num_attention_heads",
    "groups": "num_query_groups",
    "vocab": "vocab_size",
}
"""Key of `--scale` -> field of ModelShape."""

_WIDTHS = ("moe_ffn_hidden", "ffn_hidden", "shared_expert_ffn_hidden", "moe_latent_size")
_WIDTH_STEP = 16


def canonical_routing(routing: str) -> str:
    """One spelling for contracts of a training run.

    Raises:
        WorkloadError: neither `natural` nor a `RoutingSpec`.
    """
    if routing == NATURAL:
        return NATURAL
    try:
        return RoutingSpec.parse(routing).canonical
    except WorkloadError as error:
        raise WorkloadError(error.message, error.fix.replace(FORMS, f"{NATURAL}, {FORMS}")) from None


def parse_scale(text: str) -> dict[str, int]:
    """Read `layers=4,hidden=256` into fields of ModelShape.

    Raises:
        WorkloadError: an unknown key, a key twice, or a value that is not a positive integer.
    """
    fields: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = part.partition("=")
        name = SCALE_KEYS.get(key.strip())
        if name is None or name in fields:
            raise WorkloadError(
                f"--scale {text!r}: {key.strip()!r} is {'given twice' if name else 'not known'}",
                f"write KEY=N, with KEY one of {', '.join(SCALE_KEYS)}",
            )
        if not value.strip().isascii() or not value.strip().isdigit() or int(value) < 1:
            raise WorkloadError(f"--scale {text!r}: {part!r} needs a whole number of at least 1")
        fields[name] = int(value)
    return fields


def scaled(model: ModelShape, fields: Mapping[str, int]) -> ModelShape:
    """The shape with other sizes, named after them; multi-token prediction is left out.

    A smaller `hidden` takes inner widths and the number of heads with it, in proportion, unless they are given; head
    width and experts stay. Dense layers keep their number where at least one MoE layer remains. Any scale makes the
    vocabulary that of bytes.

    Raises:
        WorkloadError: sizes that contradict each other.
    """
    if not fields:
        return model.model_copy(update={"mtp_layers": 0})
    changes: dict[str, Any] = {
        "mtp_layers": 0,
        "vocab_size": BYTE_VOCABULARY,
        **_in_proportion(model, fields),
        **fields,
    }
    layers = int(changes.get("num_layers", model.num_layers))
    dense = min(model.num_layers - model.num_moe_layers, layers - 1)
    changes |= {"num_layers": layers, "num_moe_layers": layers - dense}
    given = ",".join(f"{key}={fields[name]}" for key, name in SCALE_KEYS.items() if name in fields)
    changes |= {"name": f"{model.name}[{given}]"}
    return ModelShape.model_validate(model.model_dump() | changes)


def _in_proportion(model: ModelShape, fields: Mapping[str, int]) -> dict[str, int]:
    """Widths and head counts that follow from a new `hidden`."""
    hidden = fields.get("hidden", model.hidden)
    if hidden == model.hidden:
        return {}
    changes = {}
    for name in _WIDTHS:
        width = getattr(model, name)
        if width:
            changes[name] = max(_WIDTH_STEP, width * hidden // model.hidden // _WIDTH_STEP * _WIDTH_STEP)
    if model.num_attention_heads is not None:
        heads = max(1, model.num_attention_heads * hidden // model.hidden)
        changes["num_attention_heads"] = heads
        if model.num_query_groups is not None:
            most = min(heads, max(1, model.num_query_groups * hidden // model.hidden))
            changes["num_query_groups"] = next(groups for groups in range(most, 0, -1) if heads % groups == 0)
    return changes


def check_trainable(model: ModelShape) -> None:
    """Refuse a shape from which no whole model can be built here.

    Raises:
        WorkloadError: an attention that is not built here, unknown sizes, or a vocabulary smaller than that of bytes.
    """
    if model.attention == "other":
        raise WorkloadError(
            f"{model.name}: its attention (linear, sparse or a Mamba hybrid) is not built here: it cannot be trained",
            "measure its MoE layer instead: moe-dispatch bench --level layer",
        )
    needed = ["vocab_size", "num_attention_heads"]
    if model.attention == "gqa":
        needed += ["num_query_groups", "kv_channels"]
    if model.num_layers > model.num_moe_layers:
        needed.append("ffn_hidden")
    lacking = [name for name in needed if getattr(model, name) is None]
    if lacking:
        raise WorkloadError(
            f"{model.name}: {', '.join(lacking)} unknown, so no model can be built from it",
            "pass the model's config.json, or a workload YAML that gives them",
        )
    heads, groups, width = model.num_attention_heads, model.num_query_groups, model.kv_channels
    if model.attention == "gqa" and heads and groups and width and (heads % groups or width % 2):
        raise WorkloadError(
            f"{model.name}: {heads} heads of width {width} cannot share {groups} key-value heads",
            "the number of heads must be a multiple of that of key-value heads, and their width even",
        )
    if model.vocab_size is not None and model.vocab_size < BYTE_VOCABULARY:
        raise WorkloadError(
            f"{model.name}: vocabulary {model.vocab_size} is smaller than the {BYTE_VOCABULARY} bytes of a text",
            f"use vocab={BYTE_VOCABULARY} or more",
        )


def parameters_per_rank(model: ModelShape, ep: int) -> int:
    """Parameters that one of `ep` ranks holds: its share of the routed experts, and everything else. Attention of
    multi-latent shapes is taken as if it were plain; norms are not counted.
    """
    products = 3 if model.activation == "swiglu" else 2
    heads = model.num_attention_heads or 1
    width = model.kv_channels or model.hidden // heads
    groups = model.num_query_groups or heads
    attention = 2 * model.hidden * width * (heads + groups)
    experts = products * model.dispatch_width * model.moe_ffn_hidden * model.num_experts // ep
    shared = products * model.hidden * model.shared_expert_ffn_hidden
    moe = experts + shared + model.hidden * model.num_experts
    dense = products * model.hidden * (model.ffn_hidden or 0)
    layers = model.num_layers * attention + model.num_moe_layers * moe
    layers += (model.num_layers - model.num_moe_layers) * dense
    return layers + 2 * model.hidden * (model.vocab_size or 0)
