"""Read a ModelShape from a Hugging Face `config.json`.

Spellings follow the public configs of Qwen2/3-MoE, Qwen3-Next, DeepSeek-V2/V3, Kimi-K2, Moonlight, Mixtral, GPT-OSS and
GLM-4.5 (huggingface/transformers: `src/transformers/models/*/configuration_*.py`). Where a config does not state a
router setting because the model's code fixes it, the value comes from the table below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.model import Attention, MlaShape, ModelShape, RouterShape, ScoreFunction

EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")
TOPK_KEYS = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")
EXPERT_FFN_KEYS = ("moe_intermediate_size", "intermediate_size")

SIGMOID_BY_CODE = ("deepseek_v3", "kimi_k2", "glm4_moe")
"""model_type values whose router applies sigmoid even where the config has no `scoring_func`."""

HYBRID_ATTENTION = ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text", "deepseek_v4", "nemotron_h", "minimax_m1")


def shape_from_hf_config(path: str | Path) -> ModelShape:
    """Read one config file; the model's name is the parent folder's, or the file's stem when that is not `config`.

    Raises:
        WorkloadError: the file is missing, a directory, not JSON, no MoE, or contradicts itself; the fields that were
            looked for are named.
    """
    file = Path(path)
    config = _read(file)
    nested = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    text = nested if isinstance(nested, dict) and _first(config, EXPERT_KEYS) is None else config
    name = file.resolve().parent.name if file.stem == "config" else file.stem
    experts = _first(text, EXPERT_KEYS)
    topk = _first(text, TOPK_KEYS)
    if not isinstance(experts, int) or experts < 2 or topk is None:
        kind = f"model_type '{config.get('model_type')}'" if config.get("model_type") else "no model_type"
        raise WorkloadError(
            f"{file}: not a mixture-of-experts config ({kind}); looked for the number of experts in "
            f"{', '.join(EXPERT_KEYS)} and for top-k in {', '.join(TOPK_KEYS)}",
            "pass the config.json of a MoE model, or describe the shape in a YAML workload",
        )
    try:
        return _shape(text, name or "custom", str(file), experts, topk)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise WorkloadError(f"{file}: sizes are missing or impossible: {wrong}", "check the config.json") from None


def _read(file: Path) -> dict[str, Any]:
    if file.is_dir():
        inner = file / "config.json"
        fix = f"pass {inner}" if inner.is_file() else "pass the path of a config.json file"
        raise WorkloadError(f"{file} is a directory, not a config.json", fix)
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WorkloadError(f"{file} does not exist", "check the path of the config.json") from None
    except OSError as error:
        raise WorkloadError(f"{file} cannot be read: {error.strerror}", "check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise WorkloadError(
            f"{file} is not valid JSON: {error}", "pass the unmodified config.json of the model"
        ) from None
    if not isinstance(document, dict):
        raise WorkloadError(
            f"{file} holds a JSON {type(document).__name__}, not an object", "pass a model's config.json"
        )
    return document


def _shape(config: Mapping[str, Any], name: str, source: str, experts: int, topk: int) -> ModelShape:
    mla = _mla(config)
    model_type = str(config.get("model_type", ""))
    attention: Attention = "mla" if mla else "gqa"
    if model_type in HYBRID_ATTENTION or config.get("index_topk") is not None:
        attention, mla = "other", None
    heads = config.get("num_attention_heads")
    head_dim = config.get("head_dim")
    if head_dim is None and heads and config.get("hidden_size"):
        head_dim = int(config["hidden_size"]) // int(heads)
    plain = attention != "mla"
    fields: dict[str, Any] = {
        "name": name,
        "title": name,
        "hidden": config.get("hidden_size"),
        "num_layers": config.get("num_hidden_layers"),
        "num_moe_layers": _moe_layers(config, source),
        "num_experts": experts,
        "topk": topk,
        "moe_ffn_hidden": _first(config, EXPERT_FFN_KEYS),
        "shared_expert_ffn_hidden": _shared(config),
        "ffn_hidden": config.get("intermediate_size"),
        "attention": attention,
        "num_attention_heads": heads,
        "num_query_groups": config.get("num_key_value_heads", heads) if plain else None,
        "kv_channels": head_dim if plain else None,
        "vocab_size": config.get("vocab_size"),
        "router": _router(config, model_type),
        "mla": mla,
        "activation": "squared_relu" if config.get("mlp_hidden_act") == "relu2" else "swiglu",
        "moe_latent_size": config.get("moe_latent_size"),
        "mtp_layers": config.get("num_nextn_predict_layers") or 0,
        "source": source,
    }
    optional = ("num_attention_heads", "vocab_size")
    fields["missing"] = tuple(key for key in optional if fields[key] is None)
    return ModelShape(**fields)


def _moe_layers(config: Mapping[str, Any], source: str) -> int:
    """Count the decoder layers that hold experts, by whichever of the known patterns the config uses."""
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int) or layers < 1:
        raise WorkloadError(f"{source}: num_hidden_layers={layers!r} must be a positive integer")
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("E")
    dense_first = int(config.get("first_k_dense_replace") or 0)
    freq = config.get("moe_layer_freq", 1)
    if isinstance(freq, list):
        return sum(1 for flag in freq if flag)
    step = int(config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    every = max(int(freq or 1), 1)
    return sum(
        1
        for index in range(layers)
        if index >= dense_first and index % every == 0 and (index + 1) % step == 0 and index not in dense
    )


def _shared(config: Mapping[str, Any]) -> int:
    direct = config.get("shared_expert_intermediate_size") or config.get("moe_shared_expert_intermediate_size")
    if direct:
        return int(direct)
    count = int(config.get("n_shared_experts") or config.get("num_shared_experts") or 0)
    return count * int(_first(config, EXPERT_FFN_KEYS) or 0)


def _mla(config: Mapping[str, Any]) -> MlaShape | None:
    if config.get("kv_lora_rank") is None:
        return None
    return MlaShape(
        q_lora_rank=config.get("q_lora_rank"),
        kv_lora_rank=config["kv_lora_rank"],
        qk_head_dim=config.get("qk_nope_head_dim") or 0,
        qk_pos_emb_head_dim=config.get("qk_rope_head_dim") or 0,
        v_head_dim=config.get("v_head_dim") or 0,
    )


def _router(config: Mapping[str, Any], model_type: str) -> RouterShape:
    score = config.get("scoring_func") or ("sigmoid" if model_type in SIGMOID_BY_CODE else "softmax")
    known: dict[str, ScoreFunction] = {"softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "sqrtsoftplus"}
    if score not in known:
        raise WorkloadError(f"scoring_func '{score}' is not known; known: {', '.join(known)}")
    groups, chosen = config.get("n_group"), config.get("topk_group")
    limited = bool(groups and groups > 1 and chosen and chosen < groups)
    return RouterShape(
        score_function=known[score],
        num_groups=groups if limited else None,
        group_topk=chosen if limited else None,
        expert_bias=config.get("topk_method") == "noaux_tc" or model_type in SIGMOID_BY_CODE,
        normalize_topk=bool(config.get("norm_topk_prob", True)),
        scaling_factor=float(config.get("routed_scaling_factor") or 1.0),
    )


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)
