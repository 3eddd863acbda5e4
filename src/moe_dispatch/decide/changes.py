"""What would change a verdict: reasons that hold it back, arms that could not run, labels that limit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_dispatch.decide.acceptance import Acceptance
from moe_dispatch.decide.caps import Cap
from moe_dispatch.decide.compare import Comparison

_LABELS = {
    "scaled_tokens": "all tokens of the workload (fewer were run here to fit the time budget)",
    "oversubscribed": "one rank per GPU or core (ranks shared devices here)",
    "benchmark_only": "the training job itself: synthetic data and forced routing are for benchmarks only",
}


def would_change(
    comparison: Comparison,
    caps: Sequence[Cap],
    kind: str,
    margin: float,
    on: Mapping[str, Any],
    accepted: Acceptance | None = None,
) -> tuple[str, ...]:
    """Sentences, most useful first, without repetition."""
    changes = [cap.remedy for cap in caps]
    if kind == "tie":
        changes += _tie(comparison, margin)
    if comparison.excluded:
        changes.append(f"measuring {', '.join(comparison.excluded)} under the same contract")
    for one in comparison.not_ranked:
        what = f"a valid run of {one.choice.label} ({one.status.value})"
        changes.append(f"{what}: {one.fix}" if one.fix else what)
    for arm in comparison.arms:
        if "untuned" in arm.labels:
            changes.append(f"tuning {arm.label}, whose SM knob was not swept")
    if accepted is not None:
        changes += accepted.missing
    if comparison.arms and on.get("level") == "exchange":
        changes.append("the whole MoE layer: a difference in the exchange can reverse inside it")
    changes += [text for label, text in _LABELS.items() if label in (on.get("labels") or [])]
    if comparison.arms:
        changes.append(
            "another device, transport, number of ranks, stack or workload: this holds only where it was measured"
        )
    return tuple(dict.fromkeys(changes))


def _tie(comparison: Comparison, margin: float) -> list[str]:
    fastest, runner = comparison.arms[0].label, comparison.arms[1].label
    interval = comparison.ratio(fastest, runner)
    changes = [f"a difference larger than {margin:.1%} (the larger of threshold and noise floor)"]
    if interval is not None and interval.high / interval.low - 1 > 2 * margin:
        changes.append(
            f"more launches or a quieter machine: {fastest} against {runner} lies anywhere in "
            f"{interval.low:.3f} to {interval.high:.3f}"
        )
    return changes
