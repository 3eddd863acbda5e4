"""The evidence card of a model or a family: everything known about its dispatchers, on one page, as data.

Generated, never written by hand; its JSON Schema is docs/schema/evidence-card.schema.json
(`python -m moe_dispatch.decide.card`), and a test keeps that current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.choice import KnobValue

CARD_VERSION = 1
Origin = Literal["published", "own"]
StatusWord = Literal["matched pairs", "training steps", "recipe only", "own records"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Validated(_Data):
    """On what something was measured.

    Fields:
        gpus: smallest and largest count; empty when no row states one.
        newest: date of the newest row; empty when none is dated.
    """

    hardware: str
    origin: Origin
    rows: int = Field(gt=0)
    dispatchers: tuple[str, ...]
    precisions: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    newest: str = ""


class Status(_Data):
    """How much is known on one kind of hardware, strongest kind first, and what the pairs say."""

    word: StatusWord
    pairs: int = 0
    steps: int = 0
    recipes: int = 0
    own: int = 0
    pair_winners: dict[str, int] = Field(default_factory=dict)
    conflict: tuple[str, ...] = ()


class Recommendation(_Data):
    """What to measure, in the order of the guide, at the layout of a recipe in force.

    Fields:
        candidates: the baseline first. reasons: of each candidate after it.
        recipe: configuration in force there, with its dispatcher; empty when none is known.
        confidence: how often the guide's order was right on published pairs.
    """

    model: str
    hardware: str
    layout: str
    candidates: tuple[str, ...]
    reasons: dict[str, tuple[str, ...]]
    recipe: str = ""
    confidence: str = ""


class TuningParameter(_Data):
    """One knob: its defaults with where they hold, and what to sweep."""

    dispatcher: str
    knob: str
    defaults: dict[str, KnobValue]
    sweep: tuple[KnobValue, ...] = ()
    note: str = ""


class BestMeasured(_Data):
    """The best row of its kind; rows of different hardware, precision or origin are not ranked against each other."""

    hardware: str
    precision: str
    origin: Origin
    dispatcher: str
    basis: str
    says: str
    labels: tuple[str, ...] = ()
    id: str
    date: str = ""


class Evidence(_Data):
    """One row that the card rests on."""

    id: str
    kind: str
    origin: Origin
    source: str
    date: str = ""
    labels: tuple[str, ...] = ()


class EvidenceCard(_Data):
    """The card.

    Fields:
        subject: a model's name, or a family's; models: what it covers.
        generated_by: name and version of the tool.
        status: by hardware.
    """

    card_version: int = CARD_VERSION
    subject: str
    kind: Literal["model", "family"]
    models: tuple[str, ...] = Field(min_length=1)
    generated_by: str
    validated_on: tuple[Validated, ...]
    summary: str
    status: dict[str, Status]
    recommendations: tuple[Recommendation, ...]
    tuning_parameters: tuple[TuningParameter, ...]
    best_measured: tuple[BestMeasured, ...]
    evidence: tuple[Evidence, ...]
    known_limitations: tuple[str, ...]


def card_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a card."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **EvidenceCard.model_json_schema()}


def schema_text() -> str:
    """The schema as the exported file holds it."""
    return json.dumps(card_schema(), indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Print the schema, or write it to the file named by the only argument."""
    if arguments:
        Path(arguments[0]).write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
