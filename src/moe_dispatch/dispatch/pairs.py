"""Routing weights of (token, slot) pairs: each is needed on exactly one rank, so it travels straight there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moe_dispatch.dispatch.order import stable_order
from moe_dispatch.dispatch.wire import Message

PROBS = 1


@dataclass(frozen=True)
class LocalPairs:
    """The pairs of all sources that this rank's experts serve, R of them.

    Fields:
        token_R: flat token (source * max_tokens + token) of each received row, in received order.
        order_R: natural (source, token, slot) order -> received (expert, source, token) order.
        expert_nat_R, token_nat_R: local expert and flat token in natural order.
    """

    token_R: torch.Tensor
    order_R: torch.Tensor
    expert_nat_R: torch.Tensor
    token_nat_R: torch.Tensor


@dataclass(frozen=True)
class PairRoute:
    """Where the weights of this rank's pairs go, and how those of the pairs it serves arrive.

    Fields:
        send_pairs_S: my (token * K + slot), ordered by destination rank, natural inside.
        send_counts, recv_counts: pairs to and from each rank.
        order_R: see `LocalPairs`.
    """

    send_pairs_S: torch.Tensor
    send_counts: list[int]
    recv_counts: list[int]
    order_R: torch.Tensor
    num_tokens: int
    topk: int
    rank: int


@dataclass(frozen=True)
class PairBuffers:
    """One float32 message to and from every rank, as slices of `sent` and `arrived`."""

    sent: torch.Tensor
    arrived: torch.Tensor
    sends: list[Message]
    receives: list[Message]


def local_pairs(ids_WMK: torch.Tensor, rank: int, local_experts: int) -> LocalPairs:
    """Pairs served by `rank`; no communication."""
    first = rank * local_experts
    flat = ids_WMK.reshape(-1)
    pair_nat = ((flat >= first) & (flat < first + local_experts)).nonzero().view(-1)
    token_nat = torch.div(pair_nat, ids_WMK.shape[2], rounding_mode="floor")
    expert_nat = flat[pair_nat].to(torch.int64) - first
    order = stable_order(expert_nat, local_experts)
    return LocalPairs(token_nat[order], order, expert_nat, token_nat)


def pair_route(
    owner_MK: torch.Tensor, num_tokens: int, world: int, rank: int, recv_counts: list[int], order_R: torch.Tensor
) -> PairRoute:
    """Route of my pairs; `owner_MK` is the rank of each pair's expert, negative where there is no pair."""
    flat = owner_MK.reshape(-1)
    key = torch.where(flat >= 0, flat, world)
    counts = torch.bincount(key, minlength=world + 1)[:world].tolist()
    return PairRoute(
        send_pairs_S=stable_order(key, world)[: sum(counts)],
        send_counts=counts,
        recv_counts=recv_counts,
        order_R=order_R,
        num_tokens=num_tokens,
        topk=owner_MK.shape[1],
        rank=rank,
    )


def scatter_buffers(probs_TK: torch.Tensor, route: PairRoute) -> PairBuffers:
    """Weights on their way to the experts."""
    sent = probs_TK.reshape(-1)[route.send_pairs_S]
    return _buffers(sent, route.send_counts, route.recv_counts, route.rank)


def received_probs(buffers: PairBuffers, route: PairRoute) -> torch.Tensor:
    """probs_R, in the order of the received rows."""
    return buffers.arrived[route.order_R]


def gather_buffers(probs_grad_R: torch.Tensor, route: PairRoute) -> PairBuffers:
    """Gradients of weights on their way back to the tokens."""
    natural = torch.empty_like(probs_grad_R)
    natural[route.order_R] = probs_grad_R
    return _buffers(natural, route.recv_counts, route.send_counts, route.rank)


def returned_grad(buffers: PairBuffers, route: PairRoute) -> torch.Tensor:
    """Gradient of probs_TK; zero for dropped slots."""
    grad = buffers.arrived.new_zeros(route.num_tokens * route.topk)
    grad[route.send_pairs_S] = buffers.arrived
    return grad.view(route.num_tokens, route.topk)


def _buffers(sent: torch.Tensor, out_counts: list[int], in_counts: list[int], rank: int) -> PairBuffers:
    arrived = sent.new_empty(sum(in_counts))
    outgoing, incoming = sent.split(out_counts), arrived.split(in_counts)
    incoming[rank].copy_(outgoing[rank])
    peers = [p for p in range(len(out_counts)) if p != rank]
    return PairBuffers(
        sent=sent,
        arrived=arrived,
        sends=[Message(outgoing[p], p, PROBS) for p in peers if out_counts[p]],
        receives=[Message(incoming[p], p, PROBS) for p in peers if in_counts[p]],
    )
