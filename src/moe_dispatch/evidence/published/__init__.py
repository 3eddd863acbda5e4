"""Published evidence: what public sources report about dispatchers in training, with source, date and labels.

Loaders return tuples of frozen rows and read their file once, on first use. `validate` checks everything that is
shipped; what does not fit stays in the data with its finding.
"""

from __future__ import annotations

from moe_dispatch.evidence.published.files import load
from moe_dispatch.evidence.published.pairs import KnobRow, PairRow
from moe_dispatch.evidence.published.rows import MicroRow, Misfit, RecipeRow, Row, TrainingRow


def load_training() -> tuple[TrainingRow, ...]:
    """Training steps and single MoE layers."""
    return load(TrainingRow)


def load_pairs() -> tuple[PairRow, ...]:
    """Dispatcher against dispatcher, or transport against transport."""
    return load(PairRow)


def load_knob_pairs() -> tuple[KnobRow, ...]:
    """One setting against another under the same dispatcher."""
    return load(KnobRow)


def load_recipes() -> tuple[RecipeRow, ...]:
    """Recipes in force: configuration, not measurement."""
    return load(RecipeRow)


def load_micro() -> tuple[MicroRow, ...]:
    """Dispatch and combine alone."""
    return load(MicroRow)


__all__ = [
    "KnobRow",
    "MicroRow",
    "Misfit",
    "PairRow",
    "RecipeRow",
    "Row",
    "TrainingRow",
    "load_knob_pairs",
    "load_micro",
    "load_pairs",
    "load_recipes",
    "load_training",
]
