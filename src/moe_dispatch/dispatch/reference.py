"""The oracle: the same exchange computed on one process, and the checks that a dispatcher must pass before it is timed.

Every rank generates every rank's data from the seed, so the oracle itself sends nothing but the outcome. Dispatch must
be bitwise right. Combine and gradients must be bitwise right on data whose every partial sum is exact in the dtype, and
within `(roundings * u + K * 2^-24) * sum |terms|` on random data, u the dtype's unit roundoff: each declared rounding
costs at most u of a partial sum no larger than sum |terms|, and float32 accumulation of K terms at most K * 2^-24 of
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from moe_dispatch.dispatch.base import Dispatched, Dispatcher

_FLOAT32_ROUNDOFF = 2.0**-24
_MOST_TOKENS = 48
_ID_COLUMNS = 4


@dataclass(frozen=True)
class OracleReport:
    """Outcome on all ranks of the group, the same object everywhere.

    Fields:
        passed: every check of every rank.
        checks: name -> passed.
        max_error: largest absolute error of the random-data combine.
        bound: the bound at that element.
        detail: first failure, with rank and check, or an empty string.
    """

    passed: bool
    checks: dict[str, bool]
    max_error: float
    bound: float
    detail: str


@dataclass(frozen=True)
class Case:
    """One routing on all ranks: ids_by_rank[s] is int64 [T_s, K] with -1 for dropped slots."""

    name: str
    ids_by_rank: tuple[torch.Tensor, ...]
    strided_input: bool = False


@dataclass(frozen=True)
class ReceivedPairs:
    """The pairs a rank must receive, by local expert, source rank, token. All int64, length R."""

    source_R: torch.Tensor
    token_R: torch.Tensor
    slot_R: torch.Tensor
    expert_R: torch.Tensor


def received_pairs(ids_by_rank: tuple[torch.Tensor, ...], num_experts: int, rank: int) -> ReceivedPairs:
    """Which (source, token, slot) rows `rank` must receive, in our canonical order; pure, on the CPU."""
    local = num_experts // len(ids_by_rank)
    found = []
    for source, ids in enumerate(ids_by_rank):
        token, slot = torch.nonzero((ids >= rank * local) & (ids < (rank + 1) * local), as_tuple=True)
        expert = ids[token, slot] - rank * local
        found.append(torch.stack([torch.full_like(token, source), token, slot, expert]))
    source_R, token_R, slot_R, expert_R = torch.cat(found, 1)
    order = torch.argsort(expert_R, stable=True)
    return ReceivedPairs(source_R[order], token_R[order], slot_R[order], expert_R[order])


def check_dispatcher(dispatcher: Dispatcher, seed: int = 0, max_tokens: int = _MOST_TOKENS) -> OracleReport:
    """Run every case against the oracle; collective over the dispatcher's group.

    Args:
        dispatcher: freshly built or used; it is called about a dozen times.
        seed: routing and data; the same on every rank.
        max_tokens: tokens a rank uses, further limited by the dispatcher's own `max_tokens`.
    """
    checks: dict[str, bool] = {}
    failures: list[str] = []
    worst = (0.0, 0.0)
    for case in make_cases(dispatcher, seed, min(max_tokens, dispatcher.max_tokens)):
        for name, outcome in _run_case(dispatcher, case, seed).items():
            checks[f"{case.name}/{name}"] = outcome.passed
            if not outcome.passed:
                failures.append(f"rank {dispatcher.rank}: {case.name}/{name}: {outcome.detail}")
            if outcome.error >= worst[0]:
                worst = (outcome.error, outcome.bound)
    everyone: list[tuple[dict[str, bool], list[str], tuple[float, float]]] = [({}, [], (0.0, 0.0))] * dispatcher.world
    dist.all_gather_object(everyone, (checks, failures, worst), group=dispatcher.group)
    merged = {name: all(result[0].get(name, False) for result in everyone) for name in checks}
    details = [detail for result in everyone for detail in result[1]]
    error, bound = max(result[2] for result in everyone)
    return OracleReport(all(merged.values()), merged, error, bound, details[0] if details else "")


def make_cases(dispatcher: Dispatcher, seed: int, most: int) -> list[Case]:
    """The routings every dispatcher must survive, for its group size, experts and top-k."""
    world, experts, topk = dispatcher.world, dispatcher.num_experts, dispatcher.topk
    generator = torch.Generator().manual_seed(seed)

    def routed(tokens: int, allowed: int = experts) -> torch.Tensor:
        scores = torch.rand(tokens, experts, generator=generator)
        scores[:, allowed:] -= 2.0
        return torch.topk(scores, topk, dim=1).indices if tokens else torch.zeros(0, topk, dtype=torch.int64)

    def dropped(ids: torch.Tensor) -> torch.Tensor:
        ids = ids.masked_fill(torch.rand(ids.shape, generator=generator) < 0.25, -1)
        ids[1::5] = -1
        return ids

    def hot(ids: torch.Tensor) -> torch.Tensor:
        """Every token names expert 0 in its first slot; a token that had it elsewhere gives it up there."""
        ids = torch.where(ids == 0, ids[:, :1], ids)
        ids[:, 0] = 0
        return ids

    uneven = [(most * (s + 1)) // world for s in range(world)]
    return [
        Case("uniform", tuple(routed(most) for _ in range(world))),
        Case("dropped", tuple(dropped(routed(most)) for _ in range(world))),
        Case("zero_token_rank", tuple(routed(0 if s == world - 1 else most) for s in range(world)), strided_input=True),
        Case("unequal_tokens", tuple(routed(t) for t in uneven)),
        Case("empty_experts", tuple(routed(most, max(topk, experts // 2)) for _ in range(world))),
        Case("one_hot_expert", tuple(hot(routed(most)) for _ in range(world))),
        Case("nothing_routed", tuple(torch.full((most, topk), -1) for _ in range(world))),
    ]


@dataclass(frozen=True)
class _Outcome:
    passed: bool
    detail: str = ""
    error: float = 0.0
    bound: float = 0.0


def _run_case(dispatcher: Dispatcher, case: Case, seed: int) -> dict[str, _Outcome]:
    ids = case.ids_by_rank[dispatcher.rank]
    pairs = received_pairs(case.ids_by_rank, dispatcher.num_experts, dispatcher.rank)
    inputs = [_token_rows(dispatcher, s, i.shape[0], seed) for s, i in enumerate(case.ids_by_rank)]
    weights = [
        torch.rand(i.shape, generator=torch.Generator().manual_seed(seed + 7 * s))
        for s, i in enumerate(case.ids_by_rank)
    ]
    x = inputs[dispatcher.rank].to(dispatcher.device)
    if case.strided_input:
        x = torch.stack([x, x], 2)[:, :, 0]
    x = x.detach().requires_grad_()
    probs = weights[dispatcher.rank].to(dispatcher.device).requires_grad_()
    sent = dispatcher.dispatch(x, ids.to(dispatcher.device), probs)
    order, outcome = _match_rows(sent, pairs, inputs, weights)
    results = {"dispatch": outcome}
    if not _together(dispatcher, outcome.passed):
        return results
    here = ReceivedPairs(pairs.source_R[order], pairs.token_R[order], pairs.slot_R[order], pairs.expert_R[order])
    results |= _check_exact(dispatcher, case, sent, here, x, probs)
    results["combine_random"] = _check_random(dispatcher, case, sent, here, seed)
    return results


def _together(dispatcher: Dispatcher, passed: bool) -> bool:
    """Whether all ranks passed: nobody may enter the next collective call alone."""
    flag = torch.tensor([0 if passed else 1], dtype=torch.int32, device=dispatcher.device)
    dist.all_reduce(flag, group=dispatcher.group)
    return int(flag.item()) == 0


def _token_rows(dispatcher: Dispatcher, source: int, tokens: int, seed: int) -> torch.Tensor:
    """[T, H] small integers; the first columns spell (source, token) so that a row says where it came from."""
    generator = torch.Generator().manual_seed(seed + 1000 + source)
    rows = torch.randint(-4, 5, (tokens, dispatcher.hidden), generator=generator)
    token = torch.arange(tokens)
    digits = torch.stack(
        [torch.full_like(token, source % 256), token % 256, token // 256, token * 0 + source // 256], 1
    )
    columns = min(_ID_COLUMNS, dispatcher.hidden)
    rows[:, :columns] = digits[:, :columns]
    return rows.to(dispatcher.dtype)


def _match_rows(
    sent: Dispatched, pairs: ReceivedPairs, inputs: list[torch.Tensor], weights: list[torch.Tensor]
) -> tuple[torch.Tensor, _Outcome]:
    """Compare received rows bitwise, inside each expert in any order; returns which expected pair each row is."""
    rows, probs = sent.x_RH.detach().cpu(), sent.probs_R.detach().cpu()
    counts = torch.bincount(pairs.expert_R, minlength=sent.tokens_per_expert_e.numel())
    identity = torch.arange(pairs.expert_R.numel())
    if not torch.equal(sent.tokens_per_expert_e.cpu(), counts):
        return identity, _Outcome(
            False, f"tokens per expert {sent.tokens_per_expert_e.tolist()}, expected {counts.tolist()}"
        )
    if rows.shape[0] != counts.sum() or probs.shape[0] != rows.shape[0]:
        return identity, _Outcome(
            False, f"{rows.shape[0]} rows and {probs.shape[0]} probs, expected {int(counts.sum())}"
        )
    if not rows.shape[0]:
        return identity, _Outcome(True)
    expected = torch.stack([inputs[s][t] for s, t in zip(pairs.source_R, pairs.token_R, strict=True)])
    expected_probs = torch.stack(
        [weights[s][t, k] for s, t, k in zip(pairs.source_R, pairs.token_R, pairs.slot_R, strict=True)]
    )
    order = identity
    if not torch.equal(rows, expected) or not torch.equal(probs, expected_probs):
        got, want = _sort_key(rows, probs, pairs.expert_R), _sort_key(expected, expected_probs, pairs.expert_R)
        order = torch.empty_like(identity)
        order[got] = want
    same = torch.equal(_bits(rows), _bits(expected[order])) and torch.equal(_bits(probs), _bits(expected_probs[order]))
    if same:
        return order, _Outcome(True)
    wrong = int((rows != expected[order]).any(1).sum())
    return order, _Outcome(False, f"{wrong} of {rows.shape[0]} rows or their weights differ from what was sent")


def _sort_key(rows: torch.Tensor, probs: torch.Tensor, expert_R: torch.Tensor) -> torch.Tensor:
    """Order by expert, then by the identity spelled in the first columns, then by weight."""
    order = torch.argsort(probs, stable=True)
    for column in reversed(range(min(_ID_COLUMNS, rows.shape[1]))):
        order = order[torch.argsort(rows[order, column].float(), stable=True)]
    return order[torch.argsort(expert_R[order], stable=True)]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _check_exact(
    dispatcher: Dispatcher, case: Case, sent: Dispatched, here: ReceivedPairs, x: torch.Tensor, probs: torch.Tensor
) -> dict[str, _Outcome]:
    """Combine, input gradient and weight gradient on integers small enough that every sum is exact in the dtype."""
    ids = case.ids_by_rank[dispatcher.rank]
    device, dtype, topk = dispatcher.device, dispatcher.dtype, dispatcher.topk
    live_TK = (ids >= 0).double()
    slots = torch.arange(topk)
    few = (slots < 64).double()  # 64 slots of at most 4 stay within the 256 that bfloat16 counts exactly
    scale_R = _factor(here.source_R, here.token_R, here.slot_R) * few[here.slot_R]
    scale_TK = _factor(torch.tensor(dispatcher.rank), torch.arange(ids.shape[0])[:, None], slots[None]) * few * live_TK
    direction = torch.ones(1, dispatcher.hidden, dtype=torch.float64)
    direction[:, 1::2] = -1.0
    # y depends on x only through zero, so values stay small while the gradient still flows.
    y_RH = (sent.x_RH * 0 + (scale_R[:, None] * direction).to(dtype).to(device)) + (
        sent.x_RH - sent.x_RH.detach()
    ) * scale_R[:, None].to(dtype).to(device)
    out_TH = dispatcher.combine(y_RH, sent.state)
    want_out = scale_TK.sum(1, keepdim=True) * direction
    sign_TH = torch.ones_like(want_out)
    sign_TH[::2] = -1.0
    weight_R = (here.source_R * 7 + here.token_R * 3 + here.slot_R).float().to(device)
    torch.autograd.backward([out_TH, sent.probs_R], [sign_TH.to(dtype).to(device), weight_R], inputs=[x, probs])
    want_x = scale_TK.sum(1, keepdim=True) * sign_TH
    want_probs = (dispatcher.rank * 7 + torch.arange(ids.shape[0])[:, None] * 3 + slots[None]) * live_TK
    assert x.grad is not None
    assert probs.grad is not None
    return {
        "combine_exact": _equal(out_TH, want_out),
        "grad_input_exact": _equal(x.grad, want_x),
        "grad_probs_exact": _equal(probs.grad, want_probs),
    }


def _factor(source: torch.Tensor, token: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """A small integer for each pair, from -3 to 3, zero excluded: all of them must arrive."""
    value = (source * 5 + token * 3 + slot * 7) % 6 - 3
    return torch.where(value >= 0, value + 1, value).double()


def _equal(got: torch.Tensor, want: torch.Tensor) -> _Outcome:
    got64 = got.detach().cpu().double()
    if got64.shape != want.shape:
        return _Outcome(False, f"shape {tuple(got64.shape)}, expected {tuple(want.shape)}")
    wrong = int((got64 != want).sum())
    return _Outcome(wrong == 0, "" if wrong == 0 else f"{wrong} of {want.numel()} values differ")


def _check_random(dispatcher: Dispatcher, case: Case, sent: Dispatched, here: ReceivedPairs, seed: int) -> _Outcome:
    """Combine of random rows against float64, within the declared bound."""
    dtype = dispatcher.dtype

    def rows_of(source: int) -> torch.Tensor:
        shape = (*case.ids_by_rank[source].shape, dispatcher.hidden)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 31 * source + 5)).to(dtype)

    y_RH = torch.empty(here.source_R.numel(), dispatcher.hidden, dtype=dtype)
    for source in range(dispatcher.world):
        picked = here.source_R == source
        y_RH[picked] = rows_of(source)[here.token_R[picked], here.slot_R[picked]]
    with torch.no_grad():
        out = dispatcher.combine(y_RH.to(dispatcher.device), sent.state).cpu().double()
    live = (case.ids_by_rank[dispatcher.rank] >= 0).double()[:, :, None]
    terms = rows_of(dispatcher.rank).double() * live
    unit = torch.finfo(dtype).eps / 2
    factor = dispatcher.combine_roundings * unit + dispatcher.topk * _FLOAT32_ROUNDOFF
    bound = factor * terms.abs().sum(1)
    error = (out - terms.sum(1)).abs()
    if not error.numel():
        return _Outcome(True)
    at = int(error.argmax())
    worst, allowed = float(error.view(-1)[at]), float(bound.view(-1)[at])
    passed = bool((error <= bound).all()) and bool(torch.isfinite(out).all())
    return _Outcome(
        passed, "" if passed else f"largest error {worst:.3g} against a bound of {allowed:.3g}", worst, allowed
    )
