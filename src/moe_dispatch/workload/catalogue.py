"""The catalogue of published MoE models, kept as YAML in `models/` (a file per family, each entry with its source)."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.model import ModelShape

ESSENTIAL = ("hidden", "num_layers", "num_moe_layers", "moe_ffn_hidden", "num_experts", "topk")


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One listed model.

    Fields:
        missing: sizes that its public source does not state; a model that lacks an essential one has no `shape`.
        shape: None when the entry is too incomplete to measure.
    """

    name: str
    title: str
    num_experts: int
    topk: int
    aliases: tuple[str, ...]
    missing: tuple[str, ...]
    notes: str
    source: str
    shape: ModelShape | None


def normalize_name(text: str) -> str:
    """Kebab form of a model name: `Qwen/Qwen3_30B_A3B` becomes `qwen3-30b-a3b`."""
    last = text.strip().rstrip("/").rsplit("/", 1)[-1]
    return last.lower().replace("_", "-").replace(".", "-").replace(" ", "-")


@cache
def list_models() -> tuple[CatalogueEntry, ...]:
    """All entries, sorted by name; entries that cannot be measured yet are listed with what they miss."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: list[CatalogueEntry] = []
    for file in resources.files("moe_dispatch.workload").joinpath("models").iterdir():
        if file.name.endswith(".yaml"):
            document = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
            entries.extend(_entry(raw) for raw in document["models"])
    return tuple(sorted(entries, key=lambda entry: entry.name))


def find_model(name: str) -> ModelShape:
    """Look a model up by name or alias; case, underscores and an owner prefix do not matter.

    Raises:
        WorkloadError: unknown (with close matches), or listed without the sizes that a measurement needs.
    """
    wanted = normalize_name(name)
    known: dict[str, CatalogueEntry] = {}
    for entry in list_models():
        for key in (entry.name, *entry.aliases):
            known[key] = entry
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise WorkloadError(
            f"unknown model '{name}'",
            f"{hint}`moe-dispatch models` lists all names; or pass the path of the model's config.json",
        )
    entry = known[wanted]
    if entry.shape is None:
        lacking = [field for field in entry.missing if field in ESSENTIAL]
        raise WorkloadError(
            f"model '{entry.name}' is listed, but its public source does not state {', '.join(lacking)}",
            "pass the path of its Hugging Face config.json instead of the name",
        )
    return entry.shape


def _entry(raw: dict[str, Any]) -> CatalogueEntry:
    fields = dict(raw)
    aliases = tuple(fields.pop("aliases", ()))
    missing = tuple(fields.get("missing", ()))
    complete = not any(field in ESSENTIAL for field in missing)
    return CatalogueEntry(
        name=raw["name"],
        title=raw["title"],
        num_experts=raw["num_experts"],
        topk=raw["topk"],
        aliases=aliases,
        missing=missing,
        notes=raw.get("notes", ""),
        source=raw["source"],
        shape=ModelShape(**fields) if complete else None,
    )
