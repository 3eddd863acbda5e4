"""Routing modes: which experts the tokens of a measurement pick, reproducibly.

`force_balanced` does what Megatron's forced load balancing does: logits become independent standard normals for each
token, so a token picks K distinct experts uniformly and counts are balanced in expectation only
(NVIDIA/Megatron-LM@d98e8a64:megatron/core/transformer/moe/moe_utils.py, `RandomSTE`). `biased:STD` adds one N(0, STD)
bias for each expert, the same on all ranks (same file, forced biased routing). `zipf:S` draws K distinct experts one
after the other with weights 1/i^S (Gumbel top-k), the ranking of experts being a permutation fixed by the seed.
`trace:FILE` replays recorded choices, or draws from recorded expert loads.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.model import check_groups

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moe_dispatch.workload.trace import Trace

Kind = Literal["force_balanced", "zipf", "biased", "trace"]
GroupScore = Literal["top_sum", "amax"]
FORMS = "force_balanced, zipf:S, biased:STD, trace:FILE"


@dataclass(frozen=True, kw_only=True)
class RoutingSpec:
    """A parsed routing mode; `value` is S or STD, `path` the trace file."""

    kind: Kind
    value: float = 0.0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> RoutingSpec:
        """Parse `force_balanced`, `zipf:S`, `biased:STD` or `trace:FILE`.

        Raises:
            WorkloadError: another word, a missing or extra value, S or STD not a finite number >= 0, no such file.
        """
        kind, colon, value = text.strip().partition(":")
        kind = kind.strip().lower().replace("-", "_")
        value = value.strip()
        if kind == "force_balanced" and not colon:
            return cls(kind="force_balanced")
        if kind == "zipf" and value:
            return cls(kind="zipf", value=_number(text, value))
        if kind == "biased" and value:
            return cls(kind="biased", value=_number(text, value))
        if kind == "trace" and value:
            path = Path(value).expanduser()
            if not path.is_file():
                raise WorkloadError(f"routing '{text}': {path} is not a file", "check the path of the trace")
            return cls(kind="trace", path=path)
        raise WorkloadError(f"routing '{text}' is not understood", f"use one of: {FORMS}")

    @property
    def canonical(self) -> str:
        """One spelling for contracts: equal text means equal routing. A trace is named by its content, not its path."""
        if self.path is not None:
            return f"trace:sha256-{hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]}"
        return self.kind if self.kind == "force_balanced" else f"{self.kind}:{self.value:.12g}"

    def load_trace(self) -> Trace | None:
        """The recorded choices or loads of a `trace:` spec, None for the other kinds."""
        if self.path is None:
            return None
        from moe_dispatch.workload.trace import load_trace

        return load_trace(self.path)


def generate(
    spec: RoutingSpec,
    num_tokens: int,
    num_experts: int,
    topk: int,
    seed: int,
    rank: int,
    num_groups: int | None = None,
    group_topk: int | None = None,
    group_score: GroupScore = "top_sum",
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Choices of one rank, the same for the same (spec, sizes, seed, rank).

    Args:
        group_score: how a group is scored in group-limited routing: `top_sum` sums its best K/g sigmoid scores (two for
            DeepSeek-V3), `amax` takes its best.

    Returns:
        expert_ids int64 [T, K], best first, and probs float32 [T, K], the softmax over the chosen logits. A replayed
        trace gives its own probs where it has them, else 1/K; its ids may hold -1 (dropped, weight 0).

    Raises:
        WorkloadError: impossible sizes, or a trace that does not fit E and K.
    """
    import numpy as np

    trace = spec.load_trace()
    if trace is not None and trace.expert_ids is not None:
        return trace.replay(num_tokens, num_experts, topk, rank)
    logits = generate_logits(spec, num_tokens, num_experts, topk, seed, rank)
    check_groups(num_experts, topk, num_groups, group_topk)
    allowed = logits
    if num_groups is not None and group_topk is not None:
        allowed = _mask_groups(logits, topk, num_groups, group_topk, group_score)
    ids = _top(allowed, topk)
    chosen = np.take_along_axis(logits, ids, axis=1)
    weights = np.exp(chosen - chosen.max(axis=1, keepdims=True, initial=-math.inf)) if num_tokens else chosen
    probs = weights / weights.sum(axis=1, keepdims=True) if num_tokens else weights
    return ids, probs.astype(np.float32)


def generate_logits(
    spec: RoutingSpec, num_tokens: int, num_experts: int, topk: int, seed: int, rank: int
) -> NDArray[np.float32]:
    """Logits [T, E] float32 whose top-k are the choices of `spec`; a router takes them in place of its own.

    Raises:
        WorkloadError: impossible sizes, or a trace of recorded choices (which has no logits).
    """
    import numpy as np

    if num_tokens < 0 or not 1 <= topk <= num_experts:
        raise WorkloadError(
            f"routing: {num_tokens} tokens with topk={topk} of {num_experts} experts is impossible",
            "tokens must be >= 0 and topk between 1 and the number of experts",
        )
    own = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, rank)))
    if spec.kind in ("force_balanced", "biased"):
        logits = own.standard_normal((num_tokens, num_experts), dtype=np.float32)
        if spec.kind == "biased":
            logits += (spec.value * _shared_rng(seed).standard_normal(num_experts)).astype(np.float32)
        return logits
    log_weights = log_expert_weights(spec, num_experts, topk, seed)
    clocks = own.standard_exponential((num_tokens, num_experts), dtype=np.float32)
    gumbel = -np.log(np.maximum(clocks, np.finfo(np.float32).tiny))  # a clock of exactly 0 happens in float32
    return np.asarray(gumbel + log_weights.astype(np.float32), dtype=np.float32)


def log_expert_weights(spec: RoutingSpec, num_experts: int, topk: int, seed: int) -> NDArray[np.float64]:
    """Log of the weight with which `zipf` or recorded loads draw each expert, [E]; -inf where an expert never is."""
    import numpy as np

    if spec.kind == "zipf":
        position = _shared_rng(seed).permutation(num_experts)
        return -spec.value * np.log1p(position.astype(np.float64))
    trace = spec.load_trace()
    if trace is None or trace.loads is None:
        raise WorkloadError(f"routing '{spec.kind}' has no expert weights", "use zipf:S or a trace of expert loads")
    fractions = trace.fractions(num_experts, topk)
    with np.errstate(divide="ignore"):
        return np.log(-np.log1p(-np.minimum(fractions, 1 - 1e-6)))


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise WorkloadError(f"routing '{text}': '{value}' is not a finite number >= 0", f"use one of: {FORMS}")
    return number


def _shared_rng(seed: int) -> np.random.Generator:
    import numpy as np

    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))


def _top(logits: NDArray[np.float32], topk: int) -> NDArray[np.int64]:
    import numpy as np

    experts = logits.shape[1]
    if topk < experts:
        best = np.argpartition(logits, experts - topk, axis=1)[:, experts - topk :]
    else:
        best = np.broadcast_to(np.arange(experts), logits.shape)
    order = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1, kind="stable")
    return np.ascontiguousarray(np.take_along_axis(best, order, axis=1), dtype=np.int64)


def _mask_groups(
    logits: NDArray[np.float32], topk: int, num_groups: int, group_topk: int, group_score: GroupScore
) -> NDArray[np.float32]:
    """Logits with the experts outside the best g groups set to -inf.

    `top_sum` follows Megatron: the sum of each group's best K/g scores
    (NVIDIA/Megatron-LM@d98e8a64:megatron/core/transformer/moe/moe_utils.py, `group_limited_topk`).
    """
    import numpy as np

    tokens, experts = logits.shape
    grouped = logits.reshape(tokens, num_groups, experts // num_groups)
    best = 1 if group_score == "amax" else min(max(topk // group_topk, 1), experts // num_groups)
    with np.errstate(over="ignore"):
        scores = grouped if group_score == "amax" else 1.0 / (1.0 + np.exp(-grouped))
    score = np.sort(scores, axis=2)[:, :, -best:].sum(axis=2)
    chosen = np.argsort(-score, axis=1, kind="stable")[:, :group_topk]
    keep = np.zeros((tokens, num_groups), dtype=bool)
    np.put_along_axis(keep, chosen, True, axis=1)
    return np.where(keep[:, :, None], grouped, np.float32(-np.inf)).reshape(tokens, experts)
