"""How often the guide's first candidate was the faster arm of a published pair: what the guide's order is worth.

Only pairs count that isolate the dispatcher, state both arms and publish a speed. Pairs of one source share runs, and
some rules rest on the same source as the pairs they are judged by; both are counted and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from moe_dispatch.core.backend import BackendSpec
from moe_dispatch.decide.ceiling import PRACTICAL_THRESHOLD
from moe_dispatch.decide.guide import Candidate, candidates, domains_of
from moe_dispatch.decide.guide_condition import Situation
from moe_dispatch.decide.guide_rules import BASELINE, Rule, load_rules
from moe_dispatch.evidence.closest import family_of
from moe_dispatch.evidence.published import PairRow
from moe_dispatch.site.hardware import FABRICS, declared_site, load_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.workload.layout import ParallelLayout
from moe_dispatch.workload.model import ModelShape
from moe_dispatch.workload.workload import Precision, Workload

SMALL_EP, LARGE_EP = 8, 64
MIN_CASES = 5
"""Fewer cases than this say nothing about a group."""

Outcome = Literal["hit", "miss", "close", "not counted"]


@dataclass(frozen=True, kw_only=True)
class PriorCase:
    """One published pair, judged.

    Fields:
        predicted: the arm that the guide puts first; measured: the faster arm.
        margin: fraction that the slower arm takes longer.
        network: between nodes, where it is one of those the guide treats apart; empty otherwise.
        outcome: `close` when the arms are within the practical threshold, so that neither is right.
        why: of a pair that is not counted.
        in_sample: a rule that led to the prediction rests on the source of the pair.
    """

    pair: str
    hardware: str
    ep_class: str
    family: str
    network: str
    outcome: Outcome
    predicted: str = ""
    measured: str = ""
    margin: float = 0.0
    why: str = ""
    in_sample: bool = False


@dataclass(frozen=True, kw_only=True)
class PriorScore:
    """Counts over cases; `close` ones are neither right nor wrong, `fresh` ones are not in sample."""

    label: str
    hits: int
    misses: int
    close: int
    fresh_hits: int
    fresh_misses: int

    @property
    def cases(self) -> int:
        """Cases with a right answer."""
        return self.hits + self.misses

    @property
    def fresh(self) -> int:
        """Of these, cases that no rule behind the prediction rests on."""
        return self.fresh_hits + self.fresh_misses

    @property
    def rate(self) -> float | None:
        """Fraction of them in which the guide's first candidate was faster; None without any."""
        return self.hits / self.cases if self.cases else None


def ep_class(ep: int | None) -> str:
    """The guide's classes of EP sizes."""
    if ep is None:
        return "unknown"
    return "small" if ep <= SMALL_EP else "large" if ep >= LARGE_EP else "medium"


def network(fabric: str) -> str:
    """The fabric where the guide treats it apart from InfiniBand; empty for that, and where it is not known."""
    return "" if fabric in ("infiniband", "none", "unknown") else fabric


def judge(
    pairs: Iterable[PairRow], specs: Mapping[str, BackendSpec], rules: Sequence[Rule] | None = None
) -> list[PriorCase]:
    """Every pair, judged against the guide as it stands."""
    deciding = [rule for rule in (load_rules() if rules is None else rules) if rule.effect != "note"]
    return [_judge(pair, specs, deciding) for pair in pairs]


def first_of(found: Sequence[Candidate], arms: Iterable[str], baseline_first: bool) -> str | None:
    """The arm that the guide puts first: a package before the baseline, unless it expects the baseline to hold."""
    among = set(arms)
    if baseline_first and BASELINE in among:
        return BASELINE
    packages = (one.choice.dispatcher for one in found if one.included and one.choice.dispatcher != BASELINE)
    first = next((name for name in packages if name in among), None)
    return first or (BASELINE if BASELINE in among else None)


def expects_baseline(workload: Workload, site: Site, specs: Mapping[str, BackendSpec], rules: Sequence[Rule]) -> bool:
    """Whether a rule that holds expects the baseline to hold its own."""
    domains = domains_of(workload, site)
    at = Situation(workload=workload, site=site, domains=domains, spec=specs[BASELINE], gate=None)
    return any(rule.baseline_hard_to_beat and rule.when.holds(at) for rule in rules)


def score(cases: Iterable[PriorCase], label: str, keep: Callable[[PriorCase], bool] = lambda _: True) -> PriorScore:
    """Count the cases that `keep` lets through."""
    kept = [case for case in cases if keep(case)]

    def count(outcome: Outcome, *, fresh: bool = False) -> int:
        return sum(case.outcome == outcome and not (fresh and case.in_sample) for case in kept)

    return PriorScore(
        label=label,
        hits=count("hit"),
        misses=count("miss"),
        close=count("close"),
        fresh_hits=count("hit", fresh=True),
        fresh_misses=count("miss", fresh=True),
    )


def _judge(pair: PairRow, specs: Mapping[str, BackendSpec], rules: Sequence[Rule]) -> PriorCase:
    judged = PriorCase(
        pair=pair.id,
        hardware=pair.hardware,
        ep_class=ep_class(pair.ep),
        family=family_of(pair.model),
        network=network(pair.fabric),
        outcome="not counted",
        why=_not_counted(pair, specs),
    )
    if judged.why:
        return judged
    assert pair.winner is not None
    assert pair.margin is not None
    workload, site = _workload(pair), _site(pair)
    arms = (pair.baseline.dispatcher, pair.treatment.dispatcher)
    compared = {name: specs[name] for name in (BASELINE, *arms)}
    found = candidates(workload, site, compared, rules=rules, stage="tuned")
    predicted = first_of(found, arms, expects_baseline(workload, site, specs, rules))
    hit = predicted == pair.winner.dispatcher
    return replace(
        judged,
        outcome="close" if pair.margin < PRACTICAL_THRESHOLD else "hit" if hit else "miss",
        predicted=predicted or "",
        measured=pair.winner.dispatcher,
        margin=pair.margin,
        in_sample=_in_sample(pair, workload, site, specs, rules),
    )


def _not_counted(pair: PairRow, specs: Mapping[str, BackendSpec]) -> str:
    arms = (pair.baseline, pair.treatment)
    if arms[0].dispatcher == arms[1].dispatcher:
        return "both arms are one dispatcher"
    if pair.winner is None:
        return "no speed is published"
    if pair.isolation != "dispatcher" or pair.confounders:
        return f"more than the dispatcher differs ({pair.isolation})"
    if any(arm.basis != "stated" for arm in arms):
        return "an arm's dispatcher is inferred"
    if pair.ep is None or pair.hardware not in load_hardware():
        return "EP or hardware is not stated"
    unknown = [arm.dispatcher for arm in arms if arm.dispatcher not in specs]
    return f"{unknown[0]} is no backend here" if unknown else ""


def _workload(pair: PairRow) -> Workload:
    """The pair's group and precision with a stand-in shape: order rules read the model's name only."""
    ep = pair.ep or 1
    shape = ModelShape(
        name=pair.model, hidden=1, num_layers=1, num_moe_layers=1, num_experts=ep, topk=1, moe_ffn_hidden=1
    )
    precision: Precision = "fp8" if (pair.precision or "").startswith("fp8") else "bf16"
    return Workload(model=shape, layout=ParallelLayout(world=ep, ep=ep), global_batch=ep, precision=precision)


def _site(pair: PairRow) -> Site:
    entry = load_hardware()[pair.hardware]
    ranks = max(pair.gpus or 0, pair.ep or 1)
    fabric = pair.fabric if pair.fabric in FABRICS else None
    return declared_site(pair.hardware, -(-ranks // entry.gpus_per_node), fabric)


def _in_sample(
    pair: PairRow, workload: Workload, site: Site, specs: Mapping[str, BackendSpec], rules: Sequence[Rule]
) -> bool:
    """Whether an order rule that holds for the pair cites the pair's repository."""
    repository = pair.source.partition("@")[0]
    at = Situation(
        workload=workload, site=site, domains=domains_of(workload, site), spec=specs[BASELINE], gate=None, stage="tuned"
    )
    return any(
        rule.effect == "order" and rule.when.holds(at) and any(source.startswith(repository) for source in rule.sources)
        for rule in rules
    )
