"""Configurations of the rule cases: a valid job, changed by fields and by `$` names for what is no field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from moe_dispatch.megatron.lint import LintResult, lint
from moe_dispatch.megatron.settings import MegatronConfig, Origin, Value
from moe_dispatch.site.devices import Gpu
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.site.model import Site

CASES = Path(__file__).parent / "rule_cases"
BASE: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_moe_experts": 8,
    "moe_ffn_hidden_size": 64,
    "add_bias_linear": False,
    "expert_model_parallel_size": 4,
    "bf16": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_router_dtype": "fp32",
    "moe_router_topk": 2,
    "seq_length": 4096,
    "micro_batch_size": 1,
}
"""A job in which nothing is wrong."""


def load_cases() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Rule id -> settings under which it speaks, changes after which it is silent."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for path in sorted(CASES.glob("*.yaml")):
        for name, (speaks, silent) in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            assert name not in found, name
            found[name] = (speaks, silent)
    return found


def judge(*changes: Mapping[str, Any]) -> LintResult:
    """Lint the valid job after some changes."""
    merged: dict[str, Any] = dict(BASE)
    for change in changes:
        merged.update(change)
    said = {name[1:]: value for name, value in merged.items() if name.startswith("$")}
    origin = Origin(said.get("kind", "flag"), "case")
    values = {
        name: Value(tuple(value) if isinstance(value, list) else value, origin)
        for name, value in merged.items()
        if not name.startswith("$") and name != said.get("drop")
    }
    recipe_env = said.get("recipe_env", {})
    config = MegatronConfig(
        values=values,
        env={**recipe_env, **said.get("env", {})},
        env_origins={name: Origin("recipe", "case") for name in recipe_env},
        shadowed_env=said.get("shadowed", {}),
        framework=said.get("framework", "megatron-lm"),
        launcher=said.get("launcher", "unknown"),
        core_version=said.get("core", "0.19.2"),
        bridge_version=said.get("bridge"),
        world_size=said.get("world"),
    )
    return lint(config, _site(said), said.get("package"))


def _site(said: Mapping[str, Any]) -> Site | None:
    if "probed" in said:
        gpu = Gpu(index=0, name="some GPU", capability=said["probed"])
        return Site(name="probed", declared=False, device="cuda", gpus_per_node=1, gpus=(gpu,))
    return declared_site(said["site"], said.get("nodes", 8)) if "site" in said else None
