"""Workload: one training job as the measurement sees it, and how a name, a config.json or a YAML file becomes one.

Our own YAML::

    model: qwen3-30b-a3b          # catalogue name, path of a config.json (relative to this file), or a mapping of
                                  # ModelShape fields (name, hidden, num_layers, num_moe_layers, num_experts, topk,
                                  # moe_ffn_hidden, ...)
    layout: {world: 16, tp: 1, pp: 1, vpp: 1, cp: 1, ep: 16, etp: 1, sequence_parallel: false}
    seq_length: 4096
    micro_batch: 1
    global_batch: 1024
    precision: bf16               # bf16, fp16, fp32 or fp8
    routing: force_balanced       # force_balanced, zipf:S, biased:STD or trace:FILE (relative to this file)

Only `model` is required; `layout.ep` may come from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.catalogue import find_model
from moe_dispatch.workload.hf_config import shape_from_hf_config
from moe_dispatch.workload.layout import ParallelLayout
from moe_dispatch.workload.model import ModelShape
from moe_dispatch.workload.routing import RoutingSpec

Precision = Literal["bf16", "fp16", "fp32", "fp8"]
ELEMENT_BYTES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
FP8_SCALE_GROUP = 128
"""One float32 scale for each 128 elements of an fp8 row (deepseek-ai/DeepEP: per-token block scaling)."""

LAYOUT_FIELDS = ("world", "tp", "pp", "vpp", "cp", "ep", "etp", "sequence_parallel")
TOP_FIELDS = ("seq_length", "micro_batch", "global_batch", "precision", "routing")


class Workload(BaseModel):
    """Model, layout, batch, precision and routing mode.

    Fields:
        seq_length: tokens of one sequence.
        micro_batch, global_batch: sequences.
        precision: of the dispatched rows; `fp8` means fp8 rows with scales out, bf16 rows back.
        routing: text of a `RoutingSpec`.

    Raises:
        WorkloadError: EP does not divide the experts, the sequence or batch does not divide, a malformed routing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelShape
    layout: ParallelLayout
    seq_length: int = Field(default=4096, gt=0)
    micro_batch: int = Field(default=1, gt=0)
    global_batch: int = Field(gt=0)
    precision: Precision = "bf16"
    routing: str = "force_balanced"

    @model_validator(mode="after")
    def _possible(self) -> Workload:
        self.layout.check_experts(self.model.num_experts)
        self.layout.tokens_per_rank(self.seq_length, self.micro_batch)
        self.layout.micro_batches(self.global_batch, self.micro_batch)
        RoutingSpec.parse(self.routing)
        return self

    @property
    def routing_spec(self) -> RoutingSpec:
        """The parsed routing mode."""
        return RoutingSpec.parse(self.routing)

    @property
    def tokens_per_rank(self) -> int:
        """Tokens that one rank dispatches in one micro-batch."""
        return self.layout.tokens_per_rank(self.seq_length, self.micro_batch)

    @property
    def row_bytes(self) -> int:
        """Bytes of one dispatched row; fp8 rows carry a float32 scale for each 128 elements."""
        width = self.model.dispatch_width
        scales = 4 * -(-width // FP8_SCALE_GROUP) if self.precision == "fp8" else 0
        return width * ELEMENT_BYTES[self.precision] + scales

    @property
    def combine_row_bytes(self) -> int:
        """Bytes of one row on the way back: bf16 where dispatch is fp8, else as dispatched."""
        return self.model.dispatch_width * 2 if self.precision == "fp8" else self.row_bytes

    def contract_fields(self) -> dict[str, Any]:
        """Plain scalars that two runs must share, for `Contract.workload`."""
        model, layout, router = self.model, self.layout, self.model.router
        return {
            "model": model.name,
            "hidden": model.hidden,
            "dispatch_width": model.dispatch_width,
            "num_experts": model.num_experts,
            "topk": model.topk,
            "moe_ffn_hidden": model.moe_ffn_hidden,
            "shared_expert_ffn_hidden": model.shared_expert_ffn_hidden,
            "activation": model.activation,
            "score_function": router.score_function,
            "num_groups": router.num_groups,
            "group_topk": router.group_topk,
            "num_layers": model.num_layers,
            "num_moe_layers": model.num_moe_layers,
            "world": layout.world,
            "tp": layout.tp,
            "pp": layout.pp,
            "vpp": layout.vpp,
            "cp": layout.cp,
            "dp": layout.dp,
            "ep": layout.ep,
            "etp": layout.expert_tp,
            "sequence_parallel": layout.uses_sequence_parallel,
            "seq_length": self.seq_length,
            "micro_batch": self.micro_batch,
            "global_batch": self.global_batch,
            "tokens_per_rank": self.tokens_per_rank,
            "precision": self.precision,
            "routing": self.routing_spec.canonical,
        }


def load_workload(text: str, *, overrides: Mapping[str, Any] | None = None, **given: Any) -> Workload:
    """Make a workload from a catalogue name, the path of a config.json, or the path of our own YAML.

    Args:
        text: what to load; `.json`, `.yaml` and `.yml` are paths, anything else is a name unless such a file exists.
        overrides: fields by name (those of the layout and `seq_length`, `micro_batch`, `global_batch`, `precision`,
            `routing`), over what a YAML says.
        given: the same as keyword arguments (`ep=8`); None means "not given". They win over `overrides`.

    Unset: world is the smallest that fits, sequence 4096, micro batch 1, global batch one micro-batch on each replica.

    Raises:
        WorkloadError: unknown name, unreadable or malformed file, no EP size, or an impossible combination.
    """
    wanted = {**(overrides or {}), **given}
    unknown = [key for key in wanted if key not in (*LAYOUT_FIELDS, *TOP_FIELDS)]
    if unknown:
        raise WorkloadError(
            f"workload field '{unknown[0]}' is not known", f"use one of: {', '.join((*LAYOUT_FIELDS, *TOP_FIELDS))}"
        )
    path = Path(text).expanduser()
    document: dict[str, Any] = {}
    if path.suffix.lower() in (".yaml", ".yml"):
        document = _read_yaml(path)
        model = _model_of(document, path)
    elif path.suffix.lower() == ".json" or path.is_file() or (path.is_dir() and _is_path(text)):
        model = shape_from_hf_config(path)
    else:
        model = find_model(text)
    layout = {**(document.get("layout") or {}), **_pick(wanted, LAYOUT_FIELDS)}
    top = {**_pick(document, TOP_FIELDS), **_pick(wanted, TOP_FIELDS)}
    return _build(text, model, layout, top)


def _build(text: str, model: ModelShape, layout: dict[str, Any], top: dict[str, Any]) -> Workload:
    if "ep" not in layout:
        raise WorkloadError(f"workload '{text}': no expert-parallel size is given", "pass --ep N, or `layout: {ep: N}`")
    sizes = ParallelLayout(**{**layout, "world": layout.get("world") or _smallest(layout)})
    try:
        micro_batch = top.get("micro_batch", 1)
        fallback = sizes.dp * micro_batch if isinstance(micro_batch, int) else 0
        return Workload(model=model, layout=sizes, **{"global_batch": fallback, **top})
    except ValidationError as error:
        raise WorkloadError(f"workload '{text}': {_explain(error)}", "see `moe-dispatch select --help`") from None


def _smallest(layout: Mapping[str, Any]) -> int:
    sizes = {key: layout[key] for key in ("tp", "pp", "cp", "ep", "etp") if layout.get(key) is not None}
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise WorkloadError(f"layout: {key}={value!r} must be an integer of at least 1")
    return ParallelLayout.smallest_world(**sizes)


def _pick(source: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: source[name] for name in names if source.get(name) is not None}


def _is_path(text: str) -> bool:
    return "/" in text or text in (".", "..")


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WorkloadError(f"{path} does not exist", "check the path of the workload YAML") from None
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}", "pass a readable YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} is not valid YAML: {' '.join(str(error).split())}", "correct the file") from None
    allowed = ("model", "layout", *TOP_FIELDS)
    if not isinstance(document, dict) or "model" not in document:
        raise WorkloadError(f"{path} is not a workload: it needs a `model`", f"fields: {', '.join(allowed)}")
    for key in document:
        if key not in allowed:
            raise WorkloadError(f"{path}: field '{key}' is not known", f"use one of: {', '.join(allowed)}")
    layout = document.get("layout") or {}
    if not isinstance(layout, dict) or any(key not in LAYOUT_FIELDS for key in layout):
        raise WorkloadError(f"{path}: layout must be a mapping of {', '.join(LAYOUT_FIELDS)}; got {layout!r}")
    routing = document.get("routing")
    if isinstance(routing, str) and routing.startswith("trace:"):
        document["routing"] = f"trace:{path.parent / Path(routing.removeprefix('trace:').strip()).expanduser()}"
    return document


def _model_of(document: Mapping[str, Any], path: Path) -> ModelShape:
    model = document["model"]
    if isinstance(model, dict):
        try:
            return ModelShape(**{"name": path.stem, "source": str(path), **model})
        except ValidationError as error:
            raise WorkloadError(f"{path}: model: {_explain(error)}", "see the fields of ModelShape") from None
        except TypeError as error:
            raise WorkloadError(f"{path}: model: {error}") from None
    if not isinstance(model, str):
        raise WorkloadError(f"{path}: model must be a name, a path or a mapping; got {model!r}")
    if model.endswith(".json"):
        return shape_from_hf_config(path.parent / Path(model).expanduser())
    return find_model(model)


def _explain(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
