"""Contract check: a field is equal, different or unknown, and only records without a difference are compared.

What a difference means is data (`contract_table`). Field names are `workload.tp`, `stack.torch`, ...; labels are part
of the contract, except those that belong to one arm.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pydantic import Field

from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide.contract_table import (
    DifferenceClass,
    binds_others,
    binds_own_arm,
    contract_fields,
    contract_table,
    must_know,
)
from moe_dispatch.evidence.record import Model, RunRecord

UNKNOWN = "unknown"
_FREE = "*"
_DEFAULT_WHY = "the difference may come from this field instead of the dispatcher"


class Difference(Model):
    """One field in which records differ: value (as JSON text, or `unknown`) to the arms that ran with it.

    Fields:
        group: where a reader looks for it (`layout`, `recompute`, ...).
        kind: what it does to the comparison.
    """

    field: str
    group: str
    kind: DifferenceClass
    why: str
    arms_of_value: dict[str, tuple[str, ...]]

    @property
    def text(self) -> str:
        """`"fp32" for hybridep; "none" for alltoall`."""
        return "; ".join(f"{value} for {', '.join(arms)}" for value, arms in self.arms_of_value.items())


class ContractCheck(Model):
    """Outcome over the records that are compared.

    Fields:
        equal: fields that are known and equal in all of them.
        different: confounders in which other records of the same question differ from these; those are not compared.
        disclosed: fields in which compared arms differ all the same: part of a backend, harmless, or held by controls.
        unknown: fields unknown in at least one of them, or required and in none, and not attested.
        attested: unknown fields that the user vouches for.
    """

    equal: dict[str, Any] = Field(default_factory=dict)
    different: tuple[Difference, ...] = ()
    disclosed: tuple[Difference, ...] = ()
    unknown: tuple[str, ...] = ()
    attested: tuple[str, ...] = ()


class _View:
    """One record's fields as JSON text, and the parts of them that bind."""

    def __init__(self, record: RunRecord) -> None:
        table, dispatcher = contract_table(), record.choice.dispatcher
        self.record = record
        self.label = record.choice.label
        self.raw = contract_fields(record)
        self.texts = {name: json.dumps(value, sort_keys=True) for name, value in self.raw.items() if value is not None}
        rules = {name: table.rule(name) for name in self.texts}
        shared = {name for name, rule in rules.items() if binds_others(rule, dispatcher, self.raw[name])}
        own = {name for name, rule in rules.items() if binds_own_arm(rule, dispatcher)}
        self.shared = {name: text for name, text in self.texts.items() if name in shared}
        self.own = {name: text for name, text in self.texts.items() if name in own}

    def key(self, name: str) -> str | None:
        """The value that decides the group; None where it is unknown, `FREE` where it binds no other arm."""
        dispatcher = self.record.choice.dispatcher
        free = not binds_others(contract_table().rule(name), dispatcher, self.raw.get(name))
        return _FREE if free else self.shared.get(name)


def partition(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Split records into groups that do not differ in any known binding field.

    A field with one known value does not split (the others are unknown). Where several values are known, a record that
    does not know its own stands apart: it could belong to either side; one whose dispatcher does not care joins the
    largest group. Records of one arm that differ in a field which only this arm has: the most frequent value stays.
    """
    views = [_View(record) for record in records]
    splitting = sorted(name for name, values in _shared_values(views).items() if len(values) > 1)
    usual = {key: values.most_common(1)[0][0] for key, values in _own_values(views).items() if len(values) > 1}
    groups: dict[tuple[str | None, ...], list[RunRecord]] = {}
    for view in views:
        strays = (_stray(view, name, text) for (label, name), text in usual.items() if label == view.label)
        key = (*(view.key(name) for name in splitting), *(stray for stray in strays if stray is not None))
        groups.setdefault(key, []).append(view.record)
    return _join_free(groups)


def check(
    chosen: Sequence[RunRecord],
    others: Sequence[RunRecord],
    attest: Iterable[str] = (),
    *,
    controlled: Collection[str] = (),
) -> ContractCheck:
    """Check the chosen records (compared with each other) against each other and against the ones left out.

    Args:
        attest: fields the user vouches for: dotted or bare names, or a group for all unknown ones of it.
        controlled: fields in which the chosen ones may differ because control runs tie.

    Raises:
        UsageError: an attested name that is no field of these contracts.
    """
    table = contract_table()
    ours, rest = [_View(record) for record in chosen], [_View(record) for record in others]
    levels = frozenset(str(record.contract.measure.get("level")) for record in chosen)
    required = _demanded(table.required(levels), chosen)
    names = sorted({name for view in (*ours, *rest) for name in view.raw} | set(required))
    named = {name for view in ours for name in view.raw} | set(required)
    unknown = [name for name in names if name in named and any(_open(view, name) for view in ours)]
    vouched = _resolve(attest, names, unknown)
    return ContractCheck(
        equal={name: ours[0].raw[name] for name in names if _is_equal(name, ours)},
        different=_confounders((*ours, *rest), controlled),
        disclosed=_disclosed(ours, names, controlled),
        unknown=tuple(name for name in unknown if name not in vouched),
        attested=tuple(name for name in unknown if name in vouched),
    )


def _demanded(required: Iterable[str], chosen: Sequence[RunRecord]) -> tuple[str, ...]:
    """Required fields, without those that the arms' names carry because they are the variable (`variable.by_stack`)."""
    carried = [set(record.choice.knobs) for record in chosen]
    return tuple(name for name in required if carried and not all(name.partition(".")[2] in knobs for knobs in carried))


def _stray(view: _View, name: str, usual: str) -> str | None:
    """What sets a record apart from the others of its arm, or None."""
    text = view.own.get(name, UNKNOWN)
    return None if text == usual else f"{name}={text}"


def _join_free(groups: dict[tuple[str | None, ...], list[RunRecord]]) -> list[list[RunRecord]]:
    """Put records that do not care about a field into the largest group that agrees with them in all others."""
    bound = {key: list(members) for key, members in groups.items() if _FREE not in key}
    apart: list[list[RunRecord]] = []
    for key, members in groups.items():
        if _FREE not in key:
            continue
        fits = [other for other in bound if len(other) == len(key) and _agrees(key, other)]
        if fits:
            bound[max(fits, key=lambda one: len(groups[one]))] += members
        else:
            apart.append(members)
    return [*bound.values(), *apart]


def _agrees(free: Sequence[str | None], other: Sequence[str | None]) -> bool:
    return all(mine in (_FREE, theirs) for mine, theirs in zip(free, other, strict=True))


def _shared_values(views: Iterable[_View]) -> dict[str, set[str]]:
    values: defaultdict[str, set[str]] = defaultdict(set)
    for view in views:
        for name, text in view.shared.items():
            values[name].add(text)
    return values


def _own_values(views: Iterable[_View]) -> dict[tuple[str, str], Counter[str]]:
    values: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for view in views:
        for name, text in view.own.items():
            values[view.label, name][text] += 1
    return values


def _is_equal(name: str, views: Sequence[_View]) -> bool:
    values = {view.texts.get(name) for view in views}
    return len(values) == 1 and None not in values


def _open(view: _View, name: str) -> bool:
    """This record should know the field and does not."""
    return name not in view.texts and must_know(contract_table().rule(name), view.record.choice.dispatcher)


def _confounders(views: Sequence[_View], controlled: Collection[str]) -> tuple[Difference, ...]:
    names = {name for name, values in _shared_values(views).items() if len(values) > 1}
    names |= {name for (_, name), values in _own_values(views).items() if len(values) > 1}
    return tuple(_difference(views, name, DifferenceClass.CONFOUNDER) for name in sorted(names - set(controlled)))


def _disclosed(views: Sequence[_View], names: Iterable[str], controlled: Collection[str]) -> tuple[Difference, ...]:
    """Known differences between records that are compared."""
    found = []
    for name in names:
        if len({view.texts[name] for view in views if name in view.texts}) < 2:
            continue
        harmless = contract_table().rule(name).harmless
        kind = DifferenceClass.HARMLESS if harmless else DifferenceClass.DISPATCHER_COUPLED
        found.append(_difference(views, name, DifferenceClass.CONTROLLED if name in controlled else kind))
    return tuple(found)


def _difference(views: Sequence[_View], name: str, kind: DifferenceClass) -> Difference:
    arms: defaultdict[str, set[str]] = defaultdict(set)
    for view in views:
        arms[view.texts.get(name, UNKNOWN)].add(view.label)
    rule = contract_table().rule(name)
    return Difference(
        field=name,
        group=rule.group,
        kind=kind,
        why=rule.why or (_DEFAULT_WHY if kind is DifferenceClass.CONFOUNDER else ""),
        arms_of_value={value: tuple(sorted(labels)) for value, labels in sorted(arms.items())},
    )


def _resolve(attest: Iterable[str], names: Sequence[str], unknown: Sequence[str]) -> set[str]:
    table = contract_table()
    resolved: set[str] = set()
    for wanted in attest:
        matches = [name for name in names if wanted in (name, name.rpartition(".")[2])]
        if wanted in table.groups:
            matches += [name for name in unknown if table.rule(name).group == wanted]
        elif not matches:
            raise UsageError(
                f"cannot attest {wanted!r}: the contract has no such field or group",
                f"groups: {', '.join(table.groups)}; fields: {', '.join(names)}",
            )
        resolved.update(matches)
    return resolved
