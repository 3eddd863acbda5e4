"""Does lint agree with Megatron-Core? Both judge a grid of configurations; every disagreement is printed.

Needs megatron-core to import, in this environment or unpacked in a folder (it is not a dependency of the package):

    pip download megatron-core==0.19.2 --no-deps --python-version 3.12 --only-binary=:all: -d wheels
    python -m zipfile -e wheels/megatron_core-*.whl core
    python benchmarks/lint_vs_core.py --core core

Judged are the rules that say Megatron-Core's own validation raises (`proof: raises`), on configurations that change
one to six settings of a working one; "missed" is a raise without such a finding, "false" the opposite.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from moe_dispatch.megatron.lint import lint
from moe_dispatch.megatron.rules.catalogue import load_lint_rules
from moe_dispatch.megatron.settings import MegatronConfig, Origin, Value
from moe_dispatch.megatron.settings_fields import settings_fields

BASE: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_moe_experts": 8,
    "moe_ffn_hidden_size": 64,
    "add_bias_linear": False,
    "expert_model_parallel_size": 2,
    "bf16": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "cuda_graph_modules": [],
}
"""Passes validation."""
AXES: dict[str, tuple[Any, ...]] = {
    "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "moe_flex_dispatcher_backend": ("deepep", "hybridep", "ncclep"),
    "moe_enable_deepep": (True,),
    "moe_deepep_num_sms": (20, 24),
    "moe_hybridep_num_sms": (20, 32),
    "moe_flex_dispatcher_num_sms": (16,),
    "expert_model_parallel_size": (1, 4),
    "tensor_model_parallel_size": (2,),
    "expert_tensor_parallel_size": (1, 2),
    "pipeline_model_parallel_size": (2,),
    "virtual_pipeline_model_parallel_size": (2,),
    "add_bias_linear": (True,),
    "num_moe_experts": (None,),
    "moe_router_topk": (1,),
    "moe_router_pre_softmax": (True,),
    "moe_router_group_topk": (2, 4),
    "moe_router_num_groups": (2, 3),
    "moe_router_score_function": ("sigmoid",),
    "moe_router_enable_expert_bias": (True,),
    "moe_router_load_balancing_type": ("sinkhorn", "none"),
    "moe_expert_capacity_factor": (1.0, -1.0),
    "moe_pad_expert_input_to_capacity": (True,),
    "moe_expert_rank_capacity_factor": (1.5,),
    "use_transformer_engine_op_fuser": (True,),
    "moe_paged_stash": (True,),
    "offload_modules": (["expert_fc1"],),
    "cpu_offloading": (True,),
    "cpu_offloading_num_layers": (1,),
    "moe_shared_expert_intermediate_size": (64,),
    "moe_shared_expert_overlap": (True,),
    "moe_router_padding_for_quantization": (True,),
    "moe_router_padding_for_fp8": (True,),
    "fp8": ("hybrid",),
    "fp4": ("e2m1",),
    "variable_seq_lengths": (True,),
    "overlap_moe_expert_parallel_comm": (True,),
    "delay_wgrad_compute": (True,),
    "overlap_dispatch_backward_with_experts_wgrad": (True,),
    "ep_overlap_early_attn_memory_release": (True,),
    "bf16": (False,),
    "mtp_num_layers": (1, 2),
    "recompute_granularity": ("full", "selective", "other"),
    "recompute_method": ("uniform",),
    "recompute_num_layers": (1,),
    "recompute_modules": (["moe"], ["moe_act"], ["layernorm"]),
    "moe_grouped_gemm": (False,),
    "cuda_graph_impl": ("local", "transformer_engine", "full_iteration"),
    "cuda_graph_modules": (
        ["attn"],
        ["moe"],
        ["moe_router"],
        ["moe_preprocess"],
        ["moe_router", "moe_preprocess"],
        ["moe", "moe_router"],
        ["mlp"],
    ),
    "moe_use_grouped_tensor": (True,),
    "moe_dispatch_fwd_dtype": ("mxfp8",),
}
GROUPS = (
    (
        *("cuda_graph_impl", "cuda_graph_modules", "recompute_granularity", "recompute_modules"),
        *("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "moe_router_padding_for_fp8", "fp8"),
        *("num_moe_experts", "overlap_moe_expert_parallel_comm", "moe_grouped_gemm"),
    ),
    (
        *("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "overlap_dispatch_backward_with_experts_wgrad"),
        *("ep_overlap_early_attn_memory_release", "moe_shared_expert_intermediate_size", "moe_shared_expert_overlap"),
        *("moe_token_dispatcher_type", "expert_model_parallel_size", "pipeline_model_parallel_size", "bf16"),
        *("virtual_pipeline_model_parallel_size", "mtp_num_layers"),
    ),
    (
        *("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep", "moe_deepep_num_sms"),
        *("moe_hybridep_num_sms", "moe_flex_dispatcher_num_sms", "moe_expert_rank_capacity_factor"),
        *("use_transformer_engine_op_fuser", "moe_paged_stash", "offload_modules", "moe_use_grouped_tensor"),
        "moe_dispatch_fwd_dtype",
    ),
)
"""Settings that are judged together: of each group, all sets of three and four changes."""
_MODULES = "cuda_graph_modules"
OUTSIDE = (
    "transformer-engine",
    "Transformer Engine",
    "TE version",
    "CPU offloading",
    "CUDA graphs not supported with CPU offloading",
    "Pipeline parallelism with CPU offloading",
    "virtual pipeline",
    "Mixing fp8",
    "'NoneType' and 'Version'",
)
"""Raises that are about packages of this machine, or about settings that have nothing to do with the dispatcher."""


def grid(fields: set[str], samples: int, seed: int) -> Iterator[dict[str, Any]]:
    """Every pair of changes, every three and four of a group, then random sets of three to six."""
    changes = [(name, value) for name, values in AXES.items() if name in fields for value in values]
    yield dict(BASE)
    for change in changes:
        yield {**BASE, **dict([change])}
    for first, second in itertools.combinations(changes, 2):
        if first[0] != second[0]:
            yield {**BASE, **dict([first, second])}
    for names in GROUPS:
        group = [change for change in changes if change[0] in names]
        for size in (3, 4):
            for chosen in itertools.combinations(group, size):
                if len({name for name, _ in chosen}) == size:
                    yield {**BASE, **dict(chosen)}
    chooser = random.Random(seed)
    for _ in range(samples):
        yield {**BASE, **dict(chooser.sample(changes, chooser.randint(3, 6)))}


def _with_older_name(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Releases before 0.18 call the graphs' modules a scope; an empty one stays unset."""
    renamed = {name: value for name, value in setting.items() if name != _MODULES}
    return {**renamed, **({"cuda_graph_scope": setting[_MODULES]} if setting[_MODULES] else {})}


def judge_core(config_class: Any, setting: Mapping[str, Any]) -> str:
    """What Megatron-Core's validation raises, empty when it passes."""
    import torch

    copied = {name: list(value) if isinstance(value, list) else value for name, value in setting.items()}
    copied["pipeline_dtype"] = torch.bfloat16
    if copied["num_moe_experts"] is None:
        del copied["moe_ffn_hidden_size"]
    try:
        config_class(**copied)
    except (ValueError, AssertionError, NotImplementedError, TypeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return ""


def judge_lint(setting: Mapping[str, Any], version: str) -> list[str]:
    """Ids of the rules that say Megatron-Core raises."""
    values = {
        name: Value(tuple(value) if isinstance(value, list) else value, Origin("declared", "grid"))
        for name, value in setting.items()
    }
    config = MegatronConfig(values=values, framework="megatron-lm", core_version=version)
    rules = load_lint_rules()
    return [
        each.id
        for each in lint(config).findings
        if each.id in rules and rules[each.id].proof == "raises" and each.severity.value == "error"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--core", type=Path, help="folder with an unpacked megatron-core wheel")
    parser.add_argument("--samples", type=int, default=4000, help="random configurations beside all pairs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.core is not None:
        sys.path.insert(0, str(given.core))
    warnings.simplefilter("ignore")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    try:
        from megatron.core.package_info import __version__ as version
        from megatron.core.transformer.transformer_config import TransformerConfig
    except ImportError as error:
        sys.exit(f"megatron-core cannot be imported: {error}\n  fix: see the head of this file")
    fields = set(TransformerConfig.__dataclass_fields__)
    known = fields & set(settings_fields()) | {_MODULES}
    counts: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    rules_hit: set[str] = set()
    start = time.monotonic()
    for planned in grid(known, given.samples, given.seed):
        setting = planned if _MODULES in fields else _with_older_name(planned)
        raised = judge_core(TransformerConfig, setting)
        found = judge_lint(setting, version)
        if any(text in raised for text in OUTSIDE):
            counts["outside"] += 1
            continue
        rules_hit.update(found if raised else [])
        outcome = ("agree_raise" if found else "missed") if raised else ("false" if found else "agree_pass")
        counts[outcome] += 1
        if outcome in ("missed", "false"):
            changed = {name: value for name, value in setting.items() if BASE.get(name, object()) != value}
            key = raised or found[0]
            shown[key] += 1
            if shown[key] <= 3:
                print(f"{outcome}: {changed}\n    core: {raised or 'passes'}\n    lint: {found or 'nothing'}")
    total = sum(counts.values())
    proofs = {each.id for each in load_lint_rules().values() if each.proof == "raises" and each.holds_for(version)}
    print(f"\nmegatron-core {version}: {total} configurations in {time.monotonic() - start:.0f} s")
    for name, text in (
        ("agree_raise", "both refuse"),
        ("agree_pass", "both pass"),
        ("missed", "missed: Megatron-Core raises, lint is silent"),
        ("false", "false: lint calls it an error, Megatron-Core passes"),
        ("outside", "left out: raises about this machine's packages or about unrelated settings"),
    ):
        print(f"{counts[name]:>7}  {text}")
    print(f"{len(rules_hit):>7}  of {len(proofs)} rules with this proof were seen to hold")
    print("not seen: " + (", ".join(sorted(proofs - rules_hit)) or "none"))
    result = {
        "figures": {**{name: counts[name] for name in ("agree_raise", "agree_pass", "missed", "false", "outside")}},
        "hardware": "cpu",
        "versions": {"megatron_core": version, "moe_dispatch": metadata.version("moe-dispatch")},
        "labels": [],
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
