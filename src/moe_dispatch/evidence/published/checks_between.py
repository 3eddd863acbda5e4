"""Checks that need more than one row: pairs against their arms, recipes against themselves, and rows told twice."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from moe_dispatch.evidence.published.pairs import Arm, KnobRow, Paired
from moe_dispatch.evidence.published.rows import MicroRow, Misfit, RecipeRow, Row, TrainingRow
from moe_dispatch.site.hardware import load_hardware

HELD_EQUAL = (
    "model", "hardware", "precision", "gpus", "seq_length", "micro_batch", "global_batch", "tp", "pp", "vpp", "cp",
    "ep", "etp", "routing", "cuda_graph", "cuda_graph_scopes", "ep_overlap", "recompute", "fabric", "container",
)  # fmt: skip
"""What two arms must share, unless it is the knob under test or a stated confounder."""
KNOB_FIELDS = {
    "overlap_moe_expert_parallel_comm": ("ep_overlap",),
    "cuda_graph": ("cuda_graph", "cuda_graph_scopes"),
    "release": ("container",),
}
"""Fields of a training row that a knob moves; a knob that is not listed moves the field of its own name, if any."""
NOT_STATED = "not stated"
DOMAIN_RANKS = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"


def check_arms(pair: Paired, rows: Mapping[str, TrainingRow]) -> Iterator[Misfit]:
    """Both arms exist, carry the value and dispatcher of their rows, and differ in nothing that is not said (`arms`).

    What only one of them states cannot be judged (`unknown`).
    """
    missing = [arm.row for arm in (pair.baseline, pair.treatment) if arm.row not in rows]
    if missing:
        yield Misfit(check="arm", detail=f"there is no training row {', '.join(missing)}")
        return
    for arm in (pair.baseline, pair.treatment):
        yield from _check_arm(arm, rows[arm.row], pair.metric)
    before, after = rows[pair.baseline.row], rows[pair.treatment.row]
    said = {word for text in pair.confounders for word in re.findall(r"\w+", text)}
    if isinstance(pair, KnobRow):
        said.update(KNOB_FIELDS.get(pair.knob, (pair.knob,)))
    for name in HELD_EQUAL:
        one, other = getattr(before, name), getattr(after, name)
        if one != other and name not in said:
            open_side = NOT_STATED in (_shown(one), _shown(other))
            yield Misfit(
                check="unknown" if open_side else "arms", detail=f"{name}: {_shown(one)} against {_shown(other)}"
            )


def _check_arm(arm: Arm, row: TrainingRow, metric: str) -> Iterator[Misfit]:
    if (arm.dispatcher, arm.basis, arm.provider) != (row.dispatcher, row.basis, row.provider):
        yield Misfit(check="arm", detail=f"{arm.row} is {row.dispatcher} ({row.basis}), not {arm.label} ({arm.basis})")
    published = _value(row, metric)
    if arm.value != published:
        yield Misfit(check="arm", detail=f"{arm.row} has {metric} {published}, not {arm.value}")


def _value(row: TrainingRow, metric: str) -> float | None:
    if metric == "forward_backward_ms":
        both = row.forward_ms is not None and row.backward_ms is not None
        return round((row.forward_ms or 0) + (row.backward_ms or 0), 4) if both else None
    value: float | None = getattr(row, metric) if metric else None
    return value


def check_recipe(recipe: RecipeRow) -> Iterator[Misfit]:
    """The dispatcher follows from the fields, and the exported domain size from EP and the hardware."""
    kind, backend = (recipe.knobs.get(key) for key in ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"))
    follows = "alltoall" if kind == "flex" and backend is None else backend if kind == "flex" else kind
    if follows is not None and follows != recipe.dispatcher:
        yield Misfit(check="dispatcher", detail=f"type {kind} with backend {backend} is {follows}")
    hardware = load_hardware().get(recipe.hardware)
    ranks = recipe.environment.get(DOMAIN_RANKS)
    if hardware and ranks and recipe.ep and int(ranks) != min(recipe.ep, hardware.nvlink_domain):
        expected = f"EP {recipe.ep} in a domain of {hardware.nvlink_domain}"
        yield Misfit(check="domain", detail=f"{DOMAIN_RANKS}={ranks}, but {expected}")


def told_twice(rows: Iterable[Row]) -> dict[str, Misfit]:
    """Row id -> misfit, for rows whose workload and figures are all the same: probably one measurement."""
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for row in rows:
        if (key := _figures(row)) is not None:
            groups[key].append(row.id)
    return {
        name: Misfit(check="twice", detail=f"same figures as {', '.join(each for each in names if each != name)}")
        for names in groups.values()
        if len(names) > 1
        for name in names
    }


def _figures(row: Row) -> tuple[object, ...] | None:
    if isinstance(row, TrainingRow):
        measured: tuple[object, ...] = (row.step_time_s, row.forward_ms, row.tflops_per_gpu, row.tokens_per_s_per_gpu)
        about: tuple[object, ...] = (row.model, row.hardware, row.gpus, row.precision, row.dispatcher, row.seq_length)
    elif isinstance(row, MicroRow):
        measured = (row.dispatch_gbytes_per_s, row.combine_gbytes_per_s, row.dispatch_us, row.combine_us)
        about = (row.dispatcher, row.provider, row.hardware, row.ep, row.num_sms, row.level, row.precision)
    else:
        return None
    return (*about, *measured) if any(value is not None for value in measured) else None


def _shown(value: object) -> str:
    return NOT_STATED if value in (None, "", "unknown", ()) else str(value)
