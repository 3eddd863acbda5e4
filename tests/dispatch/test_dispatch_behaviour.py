"""What users of a dispatcher rely on beyond one right exchange: overlap, reuse, refusals on every rank, bytes sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks

from moe_dispatch.core.errors import MoeDispatchError, UnsupportedByBackend, UsageError
from moe_dispatch.dispatch import hierarchical_stream, wire
from moe_dispatch.dispatch.allgather import AllGatherDispatcher
from moe_dispatch.dispatch.alltoall import AllToAllDispatcher
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.dispatch.hierarchical import HierarchicalDispatcher
from moe_dispatch.workload.traffic import count_rows

pytestmark = pytest.mark.gloo

ARMS: dict[str, tuple[type[Dispatcher], dict[str, Any]]] = {
    "alltoall-collective": (AllToAllDispatcher, {"form": "collective"}),
    "alltoall-p2p": (AllToAllDispatcher, {"form": "p2p"}),
    "allgather": (AllGatherDispatcher, {}),
    "hierarchical-one-hop": (HierarchicalDispatcher, {}),
    "hierarchical-two-domains": (HierarchicalDispatcher, {"domain_size": 2, "chunks": 3}),
}
EXPERTS, HIDDEN, TOPK, TOKENS = 8, 1024, 3, 40  # rows large enough that buffers come from the pool


def _build(arm: str) -> Dispatcher:
    cls, knobs = ARMS[arm]
    return cls(dist.group.WORLD, EXPERTS, HIDDEN, TOPK, TOKENS, torch.float32, "cpu", knobs)


def _batch(rank: int, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * batch + rank)
    ids = torch.topk(torch.rand(TOKENS, EXPERTS, generator=generator), TOPK, 1).indices
    x = torch.randn(TOKENS, HIDDEN, generator=generator).requires_grad_()
    return x, ids, torch.rand(TOKENS, TOPK, generator=generator)


def _weights() -> torch.Tensor:
    return torch.arange(1.0, EXPERTS + 1)


def _experts(rows: torch.Tensor, counts: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """Expert e multiplies by e + 1."""
    mine = _weights()[rank * EXPERTS // world : (rank + 1) * EXPERTS // world]
    return rows * torch.repeat_interleave(mine, counts)[:, None]


def _expected(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x.detach().double() * _weights()[ids].sum(1, keepdim=True).double()


def _overlapped(rank: int, world: int, arm: str) -> float:
    dispatcher = _build(arm)
    batches = [_batch(rank, b) for b in range(3)]
    pending = [dispatcher.dispatch_start(*batch) for batch in batches]
    sent = [dispatcher.dispatch_finish(p) for p in pending]
    combining = [dispatcher.combine_start(_experts(s.x_RH, s.tokens_per_expert_e, rank, world), s.state) for s in sent]
    outs = [dispatcher.combine_finish(c) for c in combining]
    return max(float((o.double() - _expected(b[0], b[1])).abs().max()) for o, b in zip(outs, batches, strict=True))


# Sums of 3 float32 terms of at most 8 * |x|, |x| < 6: a few units in the last place of 150.
FLOAT32_TOLERANCE = 4 * 150 * 2.0**-24


@pytest.mark.parametrize("arm", ARMS)
def test_three_micro_batches_in_flight(arm: str) -> None:
    assert max(run_ranks(_overlapped, 4, arm)) <= FLOAT32_TOLERANCE


def _kept_activations(rank: int, world: int, arm: str) -> tuple[bool, float]:
    dispatcher = _build(arm)
    batches = [_batch(rank, b) for b in range(3)]
    sent = [dispatcher.dispatch(*batch) for batch in batches]
    copies = [s.x_RH.detach().clone() for s in sent]
    outs = [dispatcher.combine(_experts(s.x_RH, s.tokens_per_expert_e, rank, world), s.state) for s in sent]
    untouched = all(torch.equal(s.x_RH.detach(), c) for s, c in zip(sent, copies, strict=True))
    del sent
    sum(o.sum() for o in outs).backward()
    errors = [float((x.grad.double() - _weights()[ids].sum(1, keepdim=True)).abs().max()) for x, ids, _ in batches]
    return untouched, max(errors)


@pytest.mark.parametrize("arm", ARMS)
def test_later_calls_leave_earlier_activations_alone(arm: str) -> None:
    for untouched, error in run_ranks(_kept_activations, 4, arm):
        assert untouched
        assert error <= FLOAT32_TOLERANCE


def _bad_ids(rank: int, world: int, arm: str, bad: int) -> str:
    dispatcher = _build(arm)
    x, ids, probs = _batch(rank, 0)
    if rank == 1:
        ids[5, 0] = bad
    try:
        dispatcher.dispatch(x, ids, probs)
    except UsageError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("bad", [EXPERTS, -2])
@pytest.mark.parametrize("arm", ARMS)
def test_ids_out_of_range_on_one_rank_are_refused_on_all(arm: str, bad: int) -> None:
    for message in run_ranks(_bad_ids, 4, arm, bad):
        assert "rank 1" in message
        assert "[-1, 7]" in message


def _too_many_tokens(rank: int, world: int, arm: str) -> tuple[str, bool]:
    dispatcher = _build(arm)
    batch = _batch(rank, 0)
    refused = "no error"
    try:
        dispatcher.dispatch(*(torch.cat([part, part[:2]]) for part in batch) if rank == 2 else batch)
    except UsageError as error:
        refused = str(error)
    sent = dispatcher.dispatch(*batch)
    out = dispatcher.combine(_experts(sent.x_RH, sent.tokens_per_expert_e, rank, world), sent.state)
    return refused, float((out.double() - _expected(batch[0], batch[1])).abs().max()) <= FLOAT32_TOLERANCE


@pytest.mark.parametrize("arm", ARMS)
def test_too_many_tokens_on_one_rank_are_refused_on_all_and_the_next_call_works(arm: str) -> None:
    for message, next_is_right in run_ranks(_too_many_tokens, 4, arm):
        assert "rank 2 of the group passed 42 tokens" in message
        assert "max_tokens=40" in message
        assert next_is_right


def _id_types(rank: int, world: int, arm: str) -> list[bool]:
    cls, knobs = ARMS[arm]
    right = []
    for experts, dtypes in ((120, [torch.uint8, torch.int8, torch.int16]), (256, [torch.uint8, torch.int16])):
        dispatcher = cls(dist.group.WORLD, experts, 8, TOPK, TOKENS, torch.float32, "cpu", knobs)
        scores = torch.rand(TOKENS, experts, generator=torch.Generator().manual_seed(rank))
        ids, probs = torch.topk(scores, TOPK, 1).indices, torch.ones(TOKENS, TOPK)
        x = torch.arange(TOKENS * 8.0).view(TOKENS, 8)
        wide = dispatcher.dispatch(x, ids, probs)
        for dtype in dtypes:
            narrow = dispatcher.dispatch(x, ids.to(dtype), probs)
            right.append(torch.equal(narrow.x_RH, wide.x_RH))
            right.append(torch.equal(dispatcher.combine(narrow.x_RH, narrow.state), TOPK * x))
    return right


@pytest.mark.parametrize("arm", ARMS)
def test_every_integer_type_of_ids_gives_the_same_rows(arm: str) -> None:
    assert run_ranks(_id_types, 4, arm) == [[True] * 10] * 4


def _world_made_anew(rank: int, world: int, arm: str, store: str) -> bool:
    """Rank 0 sees an exchange fail that rank 1 never began; both then leave the world and make it anew."""
    if rank == 0:
        wire.Wire(dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    x, ids, probs = _batch(rank, 0)
    dispatcher = _build(arm)
    sent = dispatcher.dispatch(x, ids, probs)
    out = dispatcher.combine(_experts(sent.x_RH, sent.tokens_per_expert_e, rank, world), sent.state)
    return float((out.double() - _expected(x, ids)).abs().max()) <= FLOAT32_TOLERANCE


def test_a_world_made_anew_after_a_one_sided_failure_works(tmp_path: Path) -> None:
    assert run_ranks(_world_made_anew, 2, "alltoall-p2p", str(tmp_path / "store")) == [True, True]


def _construction(rank: int, world: int) -> list[str]:
    group = dist.group.WORLD
    attempts: list[tuple[type[Dispatcher], tuple[int, int, int, int], dict[str, Any]]] = [
        (AllToAllDispatcher, (7, 16, 2, 8), {}),
        (AllToAllDispatcher, (8, 16, 9, 8), {}),
        (AllToAllDispatcher, (8, 16, 2, 8), {"form": "ring"}),
        (AllGatherDispatcher, (8, 16, 2, 8), {"chunks": 2}),
        (HierarchicalDispatcher, (8, 16, 2, 8), {"domain_size": 3}),
        (HierarchicalDispatcher, (8, 16, 2, 8), {"chunks": 0}),
        (HierarchicalDispatcher, (8, 16, 2, 8), {"domain_size": 1 + rank % 2}),
        (HierarchicalDispatcher, (8, 16, 2, 8), {"domain_size": 1, "chunks": 1 + rank}),
        (HierarchicalDispatcher, (8, 16, 2, 8 + rank), {}),
        (AllGatherDispatcher, (8, 16, 2, 8 + rank), {}),
    ]
    messages = []
    for cls, sizes, knobs in attempts:
        with pytest.raises(MoeDispatchError) as caught:
            cls(group, *sizes, torch.float32, "cpu", knobs)
        messages.append(str(caught.value))
    with pytest.raises(UnsupportedByBackend) as refused:
        AllToAllDispatcher(group, 8, 16, 2, 8, torch.float64, "cpu", {})
    return [*messages, str(refused.value)]


def test_impossible_requests_are_refused_with_value_and_allowed() -> None:
    everyone = run_ranks(_construction, 2)
    assert everyone[0] == everyone[1]
    wanted = [
        "num_experts=7",
        "topk=9",
        "form=collective",
        "has none",
        "domain_size=3",
        "1 to 64",
        "disagree on domain_size: [1, 2]",
        "disagree on chunks: [1, 2]",
        "disagree on max_tokens: [8, 9]",
        "disagree on max_tokens: [8, 9]",
        "float64",
    ]
    assert len(everyone[0]) == len(wanted)
    for message, part in zip(everyone[0], wanted, strict=True):
        assert part in message


def _wrong_shapes(rank: int, world: int) -> list[str]:
    dispatcher = _build("alltoall-p2p")
    x, ids, probs = _batch(rank, 0)
    sent = dispatcher.dispatch(x, ids, probs)
    calls = [
        lambda: dispatcher.dispatch(x[:, :5], ids, probs),
        lambda: dispatcher.dispatch(x.bfloat16(), ids, probs),
        lambda: dispatcher.dispatch(x, ids[:, :2], probs),
        lambda: dispatcher.dispatch(x, ids.float(), probs),
        lambda: dispatcher.dispatch(x, ids, probs.double()),
        lambda: dispatcher.dispatch(torch.cat([x, x]), torch.cat([ids, ids]), torch.cat([probs, probs])),
        lambda: dispatcher.combine(sent.x_RH[1:], sent.state),
    ]
    messages = []
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_wrong_shapes_and_dtypes_are_named() -> None:
    messages = run_ranks(_wrong_shapes, 2)[0]
    wanted = ["(40, 5)", "bfloat16", "(40, 2)", "float32", "float64", "max_tokens=40", "this dispatch produced"]
    for message, part in zip(messages, wanted, strict=True):
        assert part in message


def _rows_on_the_wire(rank: int, world: int) -> tuple[int, int, np.ndarray]:
    """Rows this rank sends across domains and to its own domain for one dispatch and one combine."""
    dispatcher = _build("hierarchical-two-domains")
    sent = {hierarchical_stream._WIRE: 0, hierarchical_stream._DIRECT: 0, hierarchical_stream._FORWARD: 0}
    plain = hierarchical_stream.Wire.send

    def counting(self: Any, message: Any) -> None:
        if message.kind in sent:
            sent[message.kind] += message.tensor.shape[0]
        plain(self, message)

    hierarchical_stream.Wire.send = counting  # type: ignore[method-assign]
    x, ids, probs = _batch(rank, 0)
    out = dispatcher.dispatch(x, ids, probs)
    dispatcher.combine(out.x_RH, out.state)
    return sent[hierarchical_stream._WIRE], sum(sent.values()), ids.numpy()


def test_hierarchical_sends_exactly_the_deduplicated_rows() -> None:
    results = run_ranks(_rows_on_the_wire, 4)
    counts = count_rows([ids for _, _, ids in results], EXPERTS, 2)
    assert sum(wire for wire, _, _ in results) == 2 * counts.rows_domain_off_domain
    # Inside the domains: rows of own tokens to other ranks, and wire rows passed on to ranks off the rail.
    inside = sum(total - wire for wire, total, _ in results)
    owner = [ids // (EXPERTS // 4) for _, _, ids in results]
    expected = 0
    for rank, places in enumerate(owner):
        for token in places:
            for target in set(token.tolist()):
                same_domain = target // 2 == rank // 2
                expected += int(target != rank) if same_domain else int(target % 2 != rank % 2)
    assert inside == 2 * expected
