"""Routing weights of (token, slot) pairs: each is needed on exactly one rank, so it travels straight there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moe_dispatch.dispatch.hierarchical_plan import HierarchicalPlan
from moe_dispatch.dispatch.wire import Message

PROBS = 1


@dataclass(frozen=True)
class PairBuffers:
    """One float32 message to and from every rank, as slices of `sent` and `arrived`."""

    sent: torch.Tensor
    arrived: torch.Tensor
    sends: list[Message]
    receives: list[Message]


def scatter_buffers(probs_TK: torch.Tensor, plan: HierarchicalPlan, rank: int) -> PairBuffers:
    """Weights on their way to the experts."""
    sent = probs_TK.reshape(-1)[plan.send_pairs_S]
    return _buffers(sent, plan.send_pair_counts, plan.recv_pair_counts, rank)


def received_probs(buffers: PairBuffers, plan: HierarchicalPlan) -> torch.Tensor:
    """probs_R, in the order of the received rows."""
    return buffers.arrived[plan.pair_order_R]


def gather_buffers(probs_grad_R: torch.Tensor, plan: HierarchicalPlan, rank: int) -> PairBuffers:
    """Gradients of weights on their way back to the tokens."""
    natural = torch.empty_like(probs_grad_R)
    natural[plan.pair_order_R] = probs_grad_R
    return _buffers(natural, plan.recv_pair_counts, plan.send_pair_counts, rank)


def returned_grad(buffers: PairBuffers, plan: HierarchicalPlan, topk: int) -> torch.Tensor:
    """Gradient of probs_TK; zero for dropped slots."""
    grad = buffers.arrived.new_zeros(plan.num_tokens * topk)
    grad[plan.send_pairs_S] = buffers.arrived
    return grad.view(plan.num_tokens, topk)


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
