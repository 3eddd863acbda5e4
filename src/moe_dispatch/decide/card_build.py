"""From published rows, own records and the guide to an evidence card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.core.errors import MoeDispatchError
from moe_dispatch.decide.advice_evidence import USUAL_SEQUENCE, claims_of, recipe_text, settings_text, step_text
from moe_dispatch.decide.card import (
    BestMeasured,
    Evidence,
    EvidenceCard,
    Recommendation,
    Status,
    StatusWord,
    TuningParameter,
    Validated,
)
from moe_dispatch.decide.guide import candidates
from moe_dispatch.decide.guide_practice import load_knobs
from moe_dispatch.decide.guide_rules import BASELINE
from moe_dispatch.decide.prior import judge
from moe_dispatch.decide.prior_words import confidence
from moe_dispatch.evidence.closest import EvidenceQuery
from moe_dispatch.evidence.own import OwnRow
from moe_dispatch.evidence.published import PairRow, RecipeRow, TrainingRow, load_pairs
from moe_dispatch.evidence.published.rows import Row, Settings
from moe_dispatch.site.hardware import declared_site, load_hardware
from moe_dispatch.workload.workload import Workload, load_workload

NOT_CURRENT = ("superseded", "functional_check")
"""Labels of rows that are evidence and no best result."""


@dataclass(frozen=True, kw_only=True)
class CardRows:
    """Everything that is known about the subject; `searched` counts the own records that were looked through."""

    pairs: tuple[PairRow, ...]
    steps: tuple[TrainingRow, ...]
    recipes: tuple[RecipeRow, ...]
    own: tuple[OwnRow, ...] = ()
    searched: int = 0

    @property
    def hardware(self) -> tuple[str, ...]:
        """Kinds of hardware that any row names, sorted."""
        rows: Iterable[Row] = (*self.pairs, *self.steps, *self.recipes, *self.own)
        return tuple(sorted({row.hardware for row in rows if row.hardware}))


def build_card(
    subject: str,
    kind: Literal["model", "family"],
    models: Sequence[str],
    rows: CardRows,
    specs: Mapping[str, BackendSpec],
    generated_by: str,
) -> EvidenceCard:
    """Generate the card of a subject from its rows."""
    status = {hardware: _status(hardware, models, rows) for hardware in rows.hardware}
    return EvidenceCard(
        subject=subject,
        kind=kind,
        models=tuple(models),
        generated_by=generated_by,
        validated_on=_validated(rows),
        summary=_summary(subject, status),
        status=status,
        recommendations=tuple(_recommendations(models, rows, specs)),
        tuning_parameters=_tuning(specs),
        best_measured=tuple(_best_published(rows.steps) + _best_own(rows.own)),
        evidence=_evidence(rows),
        known_limitations=_limitations(rows, status),
    )


def _validated(rows: CardRows) -> tuple[Validated, ...]:
    found: list[Validated] = []
    for hardware in rows.hardware:
        steps = [row for row in rows.steps if row.hardware == hardware]
        own = [row for row in rows.own if row.hardware == hardware and row.latency_us is not None]
        if steps:
            found.append(_validated_of(hardware, "published", steps, {row.dispatcher for row in steps}))
        if own:
            found.append(_validated_of(hardware, "own", own, {row.dispatcher for row in own}))
    return tuple(found)


def _validated_of(
    hardware: str, origin: Literal["published", "own"], rows: Sequence[Settings], dispatchers: Iterable[str]
) -> Validated:
    counts = [row.gpus for row in rows if row.gpus]
    return Validated(
        hardware=hardware,
        origin=origin,
        rows=len(rows),
        dispatchers=tuple(sorted(dispatchers)),
        precisions=tuple(sorted({row.precision for row in rows if row.precision})),
        gpus=(min(counts), max(counts)) if counts else (),
        newest=max(row.date for row in rows),
    )


def _status(hardware: str, models: Sequence[str], rows: CardRows) -> Status:
    pairs = [row for row in rows.pairs if row.hardware == hardware and row.winner is not None]
    steps = [row for row in rows.steps if row.hardware == hardware]
    recipes = [row for row in rows.recipes if row.hardware == hardware]
    own = [row for row in rows.own if row.hardware == hardware]
    matched = [row for row in pairs if row.isolation == "dispatcher"]
    word: StatusWord = (
        "matched pairs" if matched else "training steps" if steps else "recipe only" if recipes else "own records"
    )
    favoured: dict[str, None] = {}
    for model in models:
        for precision in sorted({row.precision or "" for row in (*pairs, *steps, *recipes) if row.model == model}):
            query = EvidenceQuery(model=model, hardware=hardware, precision=precision, seq_length=USUAL_SEQUENCE)
            claims = claims_of(query, rows.pairs, rows.steps, rows.recipes)
            favoured |= dict.fromkeys(claims.conflict)
    return Status(
        word=word,
        pairs=len(pairs),
        steps=len(steps),
        recipes=len(recipes),
        own=len(own),
        pair_winners=dict(Counter(row.winner.dispatcher for row in matched if row.winner is not None)),
        conflict=tuple(favoured),
    )


def _summary(subject: str, status: Mapping[str, Status]) -> str:
    if not status:
        return f"Nothing is published about dispatchers for {subject}, and no own record is given: measure."
    by_word: dict[str, list[str]] = {}
    for hardware, one in status.items():
        by_word.setdefault(one.word, []).append(hardware)
    parts = [f"{word} on {', '.join(names)}" for word, names in by_word.items()]
    conflicts = [hardware for hardware, one in status.items() if one.conflict]
    text = f"{subject}: {'; '.join(parts)}."
    if conflicts:
        text += f" Sources favour different dispatchers on {', '.join(conflicts)}."
    return text + " Nothing here is a verdict for another machine: measure."


def _recommendations(
    models: Sequence[str], rows: CardRows, specs: Mapping[str, BackendSpec]
) -> Iterable[Recommendation]:
    cases = judge(load_pairs(), specs)
    for model in models:
        for hardware in rows.hardware:
            recipe = _recipe(rows.recipes, model, hardware)
            workload = _workload(model, recipe)
            if workload is None or recipe is None or hardware not in load_hardware():
                continue
            ranks = max(workload.layout.world, recipe.gpus or 0)
            site = declared_site(hardware, -(-ranks // load_hardware()[hardware].gpus_per_node))
            found = [one for one in candidates(workload, site, specs, stage="tuned") if one.included]
            yield Recommendation(
                model=model,
                hardware=hardware,
                layout=settings_text(recipe),
                candidates=tuple(one.choice.dispatcher for one in found),
                reasons={
                    one.choice.dispatcher: tuple(reason.text for reason in one.reasons)
                    for one in found
                    if one.choice.dispatcher != BASELINE
                },
                recipe=recipe_text(recipe),
                confidence=confidence(workload, site, cases).statement,
            )


def _recipe(recipes: Iterable[RecipeRow], model: str, hardware: str) -> RecipeRow | None:
    """The recipe in force that stands for this hardware: a performance one without a variant, bf16 before others."""
    kept = [row for row in recipes if row.model == model and row.hardware == hardware and row.ep]
    return min(
        kept, key=lambda row: (row.series != "performance", row.variant != "", row.precision != "bf16"), default=None
    )


def _workload(model: str, recipe: RecipeRow | None) -> Workload | None:
    """The model in the recipe's layout; None when the catalogue lacks it or the layout is impossible."""
    if recipe is None:
        return None
    try:
        return load_workload(model, ep=recipe.ep, tp=recipe.tp, pp=recipe.pp, cp=recipe.cp, etp=recipe.etp)
    except MoeDispatchError:
        return None


def _tuning(specs: Mapping[str, BackendSpec]) -> tuple[TuningParameter, ...]:
    return tuple(
        TuningParameter(
            dispatcher=guide.backend,
            knob=guide.knob,
            defaults={one.label: one.value for one in guide.defaults},
            sweep=specs[guide.backend].knobs[guide.knob].sweep,
            note=guide.text,
        )
        for guide in load_knobs()
        if guide.backend in specs
    )


def _best_published(steps: Iterable[TrainingRow]) -> list[BestMeasured]:
    best: dict[tuple[str, str, str], TrainingRow] = {}
    for row in steps:
        if not row.tflops_per_gpu or row.measured != "train_step" or set(NOT_CURRENT) & set(row.labels):
            continue
        key = (row.hardware, row.precision or "not stated", row.model)
        if key not in best or row.tflops_per_gpu > (best[key].tflops_per_gpu or 0):
            best[key] = row
    return [
        BestMeasured(
            hardware=hardware,
            precision=precision,
            origin="published",
            dispatcher=row.dispatcher,
            basis=row.basis,
            says=step_text(row),
            labels=row.labels,
            id=row.id,
            date=row.date,
        )
        for (hardware, precision, _), row in sorted(best.items(), key=lambda entry: entry[0])
    ]


def _best_own(own: Iterable[OwnRow]) -> list[BestMeasured]:
    best: dict[tuple[str, str, str, str], OwnRow] = {}
    for row in own:
        key = (row.hardware, row.precision or "not stated", row.model, row.level)
        known = best.get(key)
        if row.latency_us is not None and (known is None or row.latency_us < (known.latency_us or 0)):
            best[key] = row
    return [
        BestMeasured(
            hardware=hardware,
            precision=precision,
            origin="own",
            dispatcher=row.choice,
            basis="measured",
            says=f"{row.choice}: {row.latency_us:.0f} us ({level or 'level unknown'}); {settings_text(row)}",
            labels=row.labels,
            id=row.id,
            date=row.date,
        )
        for (hardware, precision, _, level), row in sorted(best.items(), key=lambda entry: entry[0])
    ]


def _evidence(rows: CardRows) -> tuple[Evidence, ...]:
    published: Iterable[Row] = (*rows.pairs, *rows.steps, *rows.recipes)
    return (
        *(_evidence_of(row, "published") for row in published),
        *(_evidence_of(row, "own") for row in rows.own),
    )


def _evidence_of(row: Row, origin: Literal["published", "own"]) -> Evidence:
    return Evidence(id=row.id, kind=row.kind, origin=origin, source=row.source, date=row.date, labels=row.labels)


def _limitations(rows: CardRows, status: Mapping[str, Status]) -> tuple[str, ...]:
    found: list[str] = []
    without = [hardware for hardware, one in status.items() if not one.pair_winners]
    if without:
        found.append(f"no pair that isolates the dispatcher is published on {', '.join(without)}")
    for basis in ("inferred", "unknown"):
        count = sum(row.basis == basis for row in rows.steps)
        if count:
            found.append(f"the dispatcher of {count} of {len(rows.steps)} published steps is {basis}")
    forced = sum("forced_balance" in row.labels for row in rows.steps)
    if forced:
        found.append(f"{forced} of {len(rows.steps)} published steps were taken under forced balance: benchmarks only")
    misfits = [(row.id, each) for row in (*rows.pairs, *rows.steps, *rows.recipes) for each in row.findings]
    found += [f"{name} does not fit: {each.check}: {each.detail}" for name, each in misfits]
    for hardware, one in status.items():
        if one.conflict:
            found.append(f"on {hardware} sources favour different dispatchers: {', '.join(one.conflict)}")
    if rows.searched and not rows.own:
        found.append(f"none of the {rows.searched} own records is of it")
    unproven = [row for row in rows.own if row.latency_us is None]
    found += [f"own record {row.id} ({row.choice}) has no figure: {row.status}: {row.reason}" for row in unproven]
    return tuple(found)
