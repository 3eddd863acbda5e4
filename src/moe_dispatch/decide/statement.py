"""The sentence that may be claimed, and nothing beyond: it names device, transport, ranks, workload and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_dispatch.decide.arms import ArmStatus, ArmSummary
from moe_dispatch.decide.contract import ContractCheck
from moe_dispatch.decide.contract_table import TRAINING_LEVEL
from moe_dispatch.decide.stats import Interval
from moe_dispatch.decide.verdict_model import Attribution
from moe_dispatch.evidence.record import RunStatus

_LEVELS = {
    "exchange": "dispatch and combine, forward and backward,",
    "layer": "one MoE layer, forward and backward,",
    TRAINING_LEVEL: "a training step",
}
MEASURED_FIELDS = (
    "site.device",
    "site.device_name",
    "site.transport",
    "site.nodes",
    "site.ranks",
    "measure.level",
    "workload.model",
    "workload.tokens_per_rank",
    "workload.dtype",
    "workload.routing",
    "labels",
)


def measured_on(equal: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """What a verdict is about, by bare field name; None where the records do not know or do not agree."""
    fields = {name.rpartition(".")[2]: equal.get(name) for name in MEASURED_FIELDS}
    fields["labels"] = list(labels)
    return fields


def place(on: Mapping[str, Any]) -> str:
    """`4 ranks on 1 node (Xeon, gloo)`."""
    ranks = f"{on['ranks']} ranks" if on.get("ranks") is not None else "an unknown number of ranks"
    nodes = on.get("nodes")
    where = "" if nodes is None else f" on {nodes} node{'' if nodes == 1 else 's'}"
    device = on.get("device_name") or on.get("device") or "unknown device"
    return f"{ranks}{where} ({device}, {on.get('transport') or 'unknown transport'})"


def subject(on: Mapping[str, Any]) -> str:
    """`one MoE layer, forward and backward, of qwen3-30b-a3b (256 tokens per rank, bfloat16, zipf:1.0 routing)`."""
    what = _LEVELS.get(str(on.get("level")), "an iteration")
    details = [
        f"{on['tokens_per_rank']} tokens per rank" if on.get("tokens_per_rank") is not None else "",
        str(on.get("dtype") or ""),
        f"{on['routing']} routing" if on.get("routing") is not None else "",
    ]
    inside = ", ".join(detail for detail in details if detail)
    return f"{what} of {on.get('model') or 'an unnamed model'}{f' ({inside})' if inside else ''}"


def labelled(on: Mapping[str, Any]) -> str:
    """Sentence part with the labels, or nothing."""
    labels = on.get("labels") or []
    return f" Labels: {', '.join(labels)}." if labels else ""


def saving(interval: Interval) -> str:
    """`12.3 % less time (95 % interval 10.0 % to 14.1 %)` for a ratio below 1, `more` above."""
    word = "less" if interval.ratio <= 1 else "more"
    ends = sorted((interval.low - 1, interval.high - 1), key=abs)
    if interval.low < 1 < interval.high:
        span = f"{interval.low - 1:+.1%} to {interval.high - 1:+.1%}"
    else:
        span = f"{abs(ends[0]):.1%} to {abs(ends[1]):.1%}"
    return f"{abs(interval.ratio - 1):.1%} {word} time (interval {span})"


def unranked(statuses: Sequence[ArmStatus], contract: ContractCheck | None = None) -> str:
    """Sentence part that says what was not ranked, or nothing.

    A missing package is a limitation of the environment; memory that did not suffice is one of these settings.
    """
    if not statuses:
        return ""
    seen = dict.fromkeys(f"{one.choice.label} ({one.status.value.replace('_', ' ')})" for one in statuses)
    text = f" Not ranked: {', '.join(seen)}."
    missing = dict.fromkeys(
        f"{one.choice.label}: {one.reason.rstrip('.')}" for one in statuses if one.status is RunStatus.UNAVAILABLE
    )
    text += "".join(f" Environment limitation of {one}." for one in missing)
    fields = [one.field for one in contract.different] if contract is not None else []
    for one in statuses:
        if one.status is RunStatus.OOM:
            at = ", ".join(f"{name} {one.settings[name]}" for name in fields if name in one.settings)
            text += f" {one.choice.label} did not fit in memory{f' with {at}' if at else ''}."
    return text


def left_out(contract: ContractCheck, excluded: Sequence[str]) -> str:
    """Arms that ran under another contract, with the fields."""
    if not excluded:
        return ""
    fields = ", ".join(one.field for one in contract.different)
    return f" Left out for another contract ({fields}): {', '.join(excluded)}."


def memory(arms: Sequence[ArmSummary], pareto: Sequence[str]) -> str:
    """Memory beside time where the fastest arm is not the leanest, or nothing."""
    if len(pareto) < 2 or any(arm.memory_bytes is None for arm in arms):
        return ""
    sizes = "; ".join(f"{arm.label} {arm.memory_bytes / 2**30:.2f} GiB" for arm in arms if arm.memory_bytes is not None)
    kind = arms[0].memory_kind.removesuffix("_bytes").replace("_", " ")
    return f" Memory ({kind}): {sizes}; no arm is best in both time and memory."


def credited(attribution: Attribution, contract: ContractCheck) -> str:
    """Sentence part that keeps a difference of several settings from being credited to one."""
    if attribution.to == "configuration":
        differences = [one for one in contract.disclosed if one.field in attribution.changed]
        parts = [f"{one.field} ({one.text})" for one in differences]
        return f" This holds for the configurations as a whole: {', '.join(parts)} changed with the dispatcher."
    if attribution.to == "stack" and len(attribution.changed) > 1:
        fields = ", ".join(attribution.changed)
        return f" This holds for the stacks as a whole: {fields} changed together, and none is credited alone."
    return ""


def winner_statement(winner: str, against: Mapping[str, Interval], on: Mapping[str, Any]) -> str:
    """One claim for each arm that was beaten."""
    parts = [f"{saving(interval)} than with {label}" for label, interval in against.items()]
    launches = min(interval.launches for interval in against.values())
    claim = f"On {place(on)}, {subject(on)} takes, with {winner}, {'; '.join(parts)}, over {launches} launches."
    return claim + labelled(on)


def tie_statement(tied: Sequence[str], recommended: str, margin: float, span: Interval, on: Mapping[str, Any]) -> str:
    """Says what was not shown, and why the simplest is recommended (none where `recommended` is empty)."""
    return (
        f"On {place(on)}, no difference beyond {margin:.1%} was shown between {' and '.join(tied)} for {subject(on)} "
        f"({tied[0]} takes {saving(span)} than {tied[1]}, over {span.launches} launches)"
        f"{f'; {recommended} is recommended as the simplest of them' if recommended else ''}.{labelled(on)}"
    )


def only_statement(
    only: str, on: Mapping[str, Any], statuses: Sequence[ArmStatus], contract: ContractCheck | None = None
) -> str:
    """No comparison took place."""
    return (
        f"On {place(on)}, only {only} gave valid timings of {subject(on)}; nothing is said about the speed of other "
        f"dispatchers.{unranked(statuses, contract)}{labelled(on)}"
    )


def no_claim(
    why: Sequence[str],
    statuses: Sequence[ArmStatus],
    on: Mapping[str, Any] | None = None,
    contract: ContractCheck | None = None,
) -> str:
    """Nothing may be claimed, with the reasons."""
    where = f" on {place(on)}" if on else ""
    tail = unranked(statuses, contract) + (labelled(on) if on else "")
    return f"No statement about the speed of these dispatchers{where}: {'; '.join(why)}.{tail}"
