"""`card`: which rows belong to a model or a family, and the card as a YAML file."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

from moe_dispatch import __version__
from moe_dispatch.core.errors import StoreError, UsageError
from moe_dispatch.core.registry import load_backends
from moe_dispatch.decide.card import EvidenceCard
from moe_dispatch.decide.card_build import CardRows, build_card
from moe_dispatch.evidence.closest import family_members
from moe_dispatch.evidence.own import OwnRow, own_row
from moe_dispatch.evidence.published import load_pairs, load_recipes, load_training
from moe_dispatch.evidence.store import Store
from moe_dispatch.workload.catalogue import list_models, normalize_name


def make_card(subject: str, store: Path | None = None) -> EvidenceCard:
    """The card of a model or family.

    Args:
        subject: a name of the catalogue, of published evidence or of own records, or a family of them.
        store: own records beside the published ones.

    Raises:
        UsageError: no such model or family, or the store does not exist.
    """
    records = _own(store) if store is not None else ()
    name, kind, models = _models(subject, records)
    wanted = set(models)
    rows = CardRows(
        pairs=tuple(row for row in load_pairs() if row.model in wanted),
        steps=tuple(row for row in load_training() if row.model in wanted),
        recipes=tuple(row for row in load_recipes() if row.model in wanted),
        own=tuple(row for row in records if row.model in wanted),
        searched=len(records),
    )
    return build_card(name, kind, models, rows, load_backends(), f"moe-dispatch {__version__}")


def card_text(card: EvidenceCard) -> str:
    """The card as YAML."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(card.model_dump(mode="json"), Dumper=dumper, sort_keys=False, width=120, allow_unicode=True)
    return text


def write_card(text: str, path: Path) -> None:
    """Write it.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}", "name another --out") from None


def _models(subject: str, records: tuple[OwnRow, ...]) -> tuple[str, Literal["model", "family"], tuple[str, ...]]:
    wanted = normalize_name(subject)
    names = {alias: entry.name for entry in list_models() for alias in (entry.name, *entry.aliases)}
    names |= {row.model: row.model for rows in (load_training(), load_recipes(), load_pairs()) for row in rows}
    names |= {normalize_name(row.model): row.model for row in records if row.model}
    if wanted in names:
        return names[wanted], "model", (names[wanted],)
    members = family_members(wanted) or frozenset(
        name for alias, name in names.items() if alias.startswith(f"{wanted}-")
    )
    if members:
        return wanted, "family", tuple(sorted(members))
    close = difflib.get_close_matches(wanted, names, n=4, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise UsageError(f"unknown model or family {subject!r}", f"{hint}`moe-dispatch models` lists models")


def _own(store: Path) -> tuple[OwnRow, ...]:
    if not store.is_dir():
        raise UsageError(f"--own {store} is no directory of records", "name the store that select or ingest wrote")
    return tuple(own_row(record, store) for record in Store(store).scan().records)
