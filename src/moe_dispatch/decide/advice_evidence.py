"""Published evidence beside a workload: what is nearest and how it differs, recipes in force, conflicting claims."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from moe_dispatch.evidence.closest import EvidenceQuery, Match, closest
from moe_dispatch.evidence.published import KnobRow, PairRow, RecipeRow, TrainingRow
from moe_dispatch.evidence.published.pairs import Arm, Paired
from moe_dispatch.evidence.published.rows import Settings

RowKind = Literal["pair", "training", "recipe", "knob"]
S = TypeVar("S", bound=Settings)
ClaimKind = Literal["recipe in force", "recipe variant", "measured pair", "best published step"]
USUAL_SEQUENCE = 4096
"""Tokens of a sequence in most published runs; others are said."""
NEAREST = 3
"""Rows of each kind that advice shows; `evidence` shows all."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NearRow(_Data):
    """A published row.

    Fields:
        statement: what it says; distance, differences: how far it is from this workload, and why.
        labels: travel with the number. findings: what the validator of published evidence finds wrong with it.
    """

    id: str
    kind: RowKind
    statement: str
    distance: float
    differences: tuple[str, ...]
    date: str
    labels: tuple[str, ...]
    findings: tuple[str, ...]
    source: str


class Claim(_Data):
    """What one source says of a dispatcher for this model on this hardware.

    Fields:
        favours: whether it prefers it to others: a recipe in force, the faster arm of a pair, the best step of all.
            Variants of a recipe and the best steps of other dispatchers stand beside it.
        over: to which others; empty means to all.
    """

    dispatcher: str
    kind: ClaimKind
    favours: bool
    over: tuple[str, ...] = ()
    statement: str
    date: str
    source: str


class Claims(_Data):
    """All of them."""

    claims: tuple[Claim, ...] = ()

    @property
    def favoured(self) -> tuple[str, ...]:
        """Dispatchers that are favoured by any."""
        return tuple(dict.fromkeys(claim.dispatcher for claim in self.claims if claim.favours))

    @property
    def conflict(self) -> tuple[str, ...]:
        """Dispatchers of which one source favours the first over the second and another the second over the first."""
        favouring = [claim for claim in self.claims if claim.favours]
        against = [
            one.dispatcher
            for one in favouring
            if any(_contradict(one, other) and _contradict(other, one) for other in favouring)
        ]
        return tuple(dict.fromkeys(against))


def _contradict(one: Claim, other: Claim) -> bool:
    """Whether the first is favoured over the second."""
    return one.dispatcher != other.dispatcher and (not one.over or other.dispatcher in one.over)


def nearest_pairs(query: EvidenceQuery, pairs: Iterable[PairRow], limit: int = NEAREST) -> tuple[NearRow, ...]:
    """Pairs of two dispatchers with a speed, nearest first."""
    kept = (pair for pair in pairs if pair.winner is not None and pair.baseline.dispatcher != pair.treatment.dispatcher)
    return tuple(_near(match, "pair", pair_text(match.row)) for match in closest(query, kept, limit))


def nearest_knobs(
    query: EvidenceQuery, rows: Iterable[KnobRow], dispatchers: Collection[str], limit: int = NEAREST
) -> tuple[NearRow, ...]:
    """Pairs of two settings of one knob under one of these dispatchers, nearest first."""
    kept = (row for row in rows if row.speedup is not None and row.dispatcher in dispatchers)
    return tuple(_near(match, "knob", knob_text(match.row)) for match in closest(query, kept, limit))


def nearest_steps(query: EvidenceQuery, rows: Iterable[TrainingRow], limit: int = NEAREST) -> tuple[NearRow, ...]:
    """Training steps whose dispatcher is known, nearest first."""
    kept = (row for row in rows if row.measured == "train_step" and row.basis != "unknown")
    return tuple(_near(match, "training", step_text(match.row)) for match in closest(query, kept, limit))


def recipes_in_force(
    query: EvidenceQuery, recipes: Iterable[RecipeRow], limit: int = NEAREST
) -> tuple[tuple[NearRow, RecipeRow], ...]:
    """Recipes of this model for this hardware: performance recipes, without variants, nearest first."""
    kept = [row for row in recipes if row.model == query.model and row.hardware == query.hardware]
    matches = sorted(
        closest(query, kept),
        key=lambda match: (match.row.series != "performance", match.row.variant != "", match.distance),
    )
    return tuple((_near(match, "recipe", recipe_text(match.row)), match.row) for match in matches[:limit])


def claims_of(
    query: EvidenceQuery,
    pairs: Sequence[PairRow],
    rows: Sequence[TrainingRow],
    recipes: Sequence[RecipeRow],
) -> Claims:
    """What sources favour for this model on this hardware, in this width of precision."""
    found = [
        _claim(
            recipe, "recipe variant" if recipe.variant else "recipe in force", recipe_text(recipe), recipe.dispatcher
        )
        for recipe in _alike(query, recipes)
        if recipe.series == "performance" and recipe.basis != "unknown"
    ]
    for pair in _alike(query, pairs):
        arms = {pair.baseline.dispatcher, pair.treatment.dispatcher}
        if pair.winner is not None and len(arms) > 1:
            over = tuple(arms - {pair.winner.dispatcher})
            found.append(_claim(pair, "measured pair", pair_text(pair), pair.winner.dispatcher, over=over))
    return Claims(claims=(*found, *_best_steps(_alike(query, rows))))


def _best_steps(rows: Iterable[TrainingRow]) -> Iterator[Claim]:
    """The best current step of each dispatcher; only the best of all favours its dispatcher."""
    best: dict[str, TrainingRow] = {}
    for row in rows:
        if row.basis == "stated" and row.tflops_per_gpu and row.measured == "train_step" and _is_current(row):
            known = best.get(row.dispatcher)
            if known is None or row.tflops_per_gpu > (known.tflops_per_gpu or 0):
                best[row.dispatcher] = row
    top = max((row.tflops_per_gpu or 0 for row in best.values()), default=0)
    for name, row in best.items():
        yield _claim(row, "best published step", step_text(row), name, favours=row.tflops_per_gpu == top)


def pair_text(pair: PairRow) -> str:
    """The faster arm, by how much, and what is known of the runs: `A faster than B by 12.6%; ...`."""
    winner, margin = pair.winner, pair.margin
    assert winner is not None
    assert margin is not None
    loser = pair.treatment if winner is pair.baseline else pair.baseline
    return f"{_arm_text(winner)} faster than {_arm_text(loser)} by {margin:.1%}; {settings_text(pair)}{_beside(pair)}"


def knob_text(row: KnobRow) -> str:
    """One setting against another: `A, num_sms 12 -> 16: 1.09 times as fast; ...`."""
    assert row.speedup is not None
    change = f"{row.knob} {row.before} -> {row.after}"
    return f"{row.dispatcher}, {change}: {row.speedup:.2f} times as fast; {settings_text(row)}{_beside(row)}"


def _beside(row: Paired) -> str:
    return f"; also differs: {', '.join(row.confounders)}" if row.confounders else ""


def _arm_text(arm: Arm) -> str:
    return arm.label if arm.basis == "stated" else f"{arm.label} ({arm.basis})"


def step_text(row: TrainingRow) -> str:
    """The dispatcher and how it is known, its figures, and the run: `A (stated): 20.15 s a step; ...`."""
    numbers = []
    if row.step_s is not None:
        numbers.append(f"{row.step_s:.2f} s a step")
    if row.tflops_per_gpu is not None:
        numbers.append(f"{row.tflops_per_gpu:.0f} TFLOP/s/GPU")
    return f"{row.dispatcher} ({row.basis}): {', '.join(numbers) or 'no speed'}; {settings_text(row)}"


def recipe_text(row: RecipeRow) -> str:
    """The dispatcher that a recipe configures: `A with 32 SMs (performance); ...`."""
    sms = f" with {row.num_sms} SMs" if row.num_sms is not None else ""
    name = f"{row.dispatcher}{sms} ({row.series}{f', {row.variant}' if row.variant else ''})"
    return f"{name}; {settings_text(row)}"


def settings_text(row: Settings) -> str:
    """Model, hardware and what is known of the layout."""
    where = f"{row.model} on {f'{row.gpus} x ' if row.gpus else ''}{row.hardware or 'any GPU'}"
    parts = [where, row.precision or ""]
    for name, size in (("EP", row.ep), ("TP", row.tp), ("PP", row.pp), ("VPP", row.vpp)):
        if size is not None and (size > 1 or name == "EP"):
            parts.append(f"{name} {size}")
    if row.seq_length not in (None, USUAL_SEQUENCE):
        parts.append(f"sequence {row.seq_length}")
    if row.micro_batch is not None:
        parts.append(f"MBS {row.micro_batch}")
    if row.ep_overlap is not None:
        parts.append(f"EP overlap {'on' if row.ep_overlap else 'off'}")
    fabric = getattr(row, "fabric", "")
    if fabric:
        parts.append(f"over {fabric}")
    if row.cuda_graph not in (None, "none"):
        scopes = f" over {'+'.join(row.cuda_graph_scopes)}" if row.cuda_graph_scopes else ""
        parts.append(f"graphs {row.cuda_graph}{scopes}")
    return ", ".join(part for part in parts if part)


def _near(match: Match[S], kind: RowKind, statement: str) -> NearRow:
    row = match.row
    return NearRow(
        id=row.id,
        kind=kind,
        statement=statement,
        distance=round(match.distance, 3),
        differences=tuple(difference.text for difference in match.differences),
        date=row.date,
        labels=row.labels,
        findings=tuple(f"{each.check}: {each.detail}" for each in row.findings),
        source=row.source,
    )


def _claim(
    row: Settings,
    kind: ClaimKind,
    statement: str,
    dispatcher: str,
    *,
    favours: bool = True,
    over: tuple[str, ...] = (),
) -> Claim:
    return Claim(
        dispatcher=dispatcher,
        kind=kind,
        favours=favours and kind != "recipe variant",
        over=over,
        statement=statement,
        date=row.date,
        source=row.source,
    )


def _alike(query: EvidenceQuery, rows: Iterable[S]) -> list[S]:
    """Rows of this model and hardware, in this width of precision, with sequences of about this length."""
    width = (query.precision or "").split("_")[0]
    return [
        row
        for row in rows
        if row.model == query.model
        and row.hardware == query.hardware
        and (row.precision is None or row.precision.split("_")[0] == width)
        and not _other_length(query.seq_length, row.seq_length)
    ]


def _other_length(ours: int | None, theirs: int | None) -> bool:
    """Whether both are known and one is more than twice the other."""
    return ours is not None and theirs is not None and max(ours, theirs) > 2 * min(ours, theirs)


def _is_current(row: TrainingRow) -> bool:
    return not {"superseded", "functional_check", "not_megatron"} & set(row.labels)
