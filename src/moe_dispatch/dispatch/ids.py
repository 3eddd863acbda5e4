"""Sharing the routing: one small message a rank, from which every rank derives all counts (no count exchange, no second
round).

Ids travel in one byte where they fit. A header carries the token count, or says that the sender's request is
impossible, so that every rank refuses together.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch.wire import Message, Wire

_IDS = 1
_HEADER_BYTES = 8


def refusal(ids_TK: torch.Tensor, num_experts: int, max_tokens: int) -> int:
    """What a rank tells the others about its request: 0, or a negative code that `refuse_together` explains."""
    if ids_TK.shape[0] > max_tokens:
        return -1 - ids_TK.shape[0]
    return -1 if bool(((ids_TK < -1) | (ids_TK >= num_experts)).any()) else 0


def refuse_together(codes: list[int], num_experts: int, max_tokens: int) -> None:
    """Raise UsageError if some rank's code is negative; `codes` by rank, the same list on every rank."""
    for source, code in enumerate(codes):
        if code == -1:
            raise UsageError(
                f"rank {source} of the group passed expert ids outside [-1, {num_experts - 1}]",
                "check the router: ids count experts of the whole group, and -1 drops a slot",
            )
        if code < 0:
            raise UsageError(
                f"rank {source} of the group passed {-1 - code} tokens, which exceed max_tokens={max_tokens}",
                "construct the dispatcher with the largest token count of any rank",
            )


def share_expert_ids(
    group: dist.ProcessGroup, ids_TK: torch.Tensor, num_experts: int, max_tokens: int, device: torch.device
) -> tuple[torch.Tensor, list[int]]:
    """All ranks' expert ids; collective.

    Args:
        group: the EP group, W ranks.
        ids_TK: this rank's ids, int32 or int64, -1 for a dropped slot.
        num_experts: E; ids outside [-1, E - 1] are refused.
        max_tokens: upper bound of T on every rank; sizes the message.
        device: where the result lives.

    Returns:
        (ids_WMK, tokens_W): int16 (int32 above 32,767 experts) of shape [W, max_tokens, K] with -1 where there is no
        pair, and each rank's token count.

    Raises:
        UsageError: some rank passed an id outside the range or more than `max_tokens` tokens; raised on every rank.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    topk = ids_TK.shape[1]
    wide = torch.uint8 if num_experts <= 255 else torch.int16 if num_experts <= 32_767 else torch.int32
    size = _HEADER_BYTES + max_tokens * topk * wide.itemsize
    ids = ids_TK.to(device)
    code = refusal(ids, num_experts, max_tokens)
    if code:
        ids = ids[:0]
    mine = torch.empty(size, dtype=torch.uint8, device=device)
    header = torch.tensor([code or ids.shape[0]], dtype=torch.int64, device=device)
    mine[:_HEADER_BYTES] = header.view(torch.uint8)
    body = mine[_HEADER_BYTES:].view(wide).view(max_tokens, topk)
    body[: ids.shape[0]] = ids.to(wide)  # -1 becomes 255 in one byte
    body[ids.shape[0] :] = 255 if wide is torch.uint8 else -1
    everyone = _all_gather_bytes(group, mine, world, rank)
    tokens = everyone[:, :_HEADER_BYTES].reshape(-1).view(torch.int64).tolist()
    refuse_together(tokens, num_experts, max_tokens)
    raw = everyone[:, _HEADER_BYTES:].reshape(-1).view(wide).view(world, max_tokens, topk)
    if wide is not torch.uint8:
        return raw, tokens
    narrow = raw.to(torch.int16)
    return narrow.masked_fill_(narrow == 255, -1), tokens


def _all_gather_bytes(group: dist.ProcessGroup, mine: torch.Tensor, world: int, rank: int) -> torch.Tensor:
    everyone = mine.new_empty(world, mine.numel())
    if dist.get_backend(group) == "nccl":
        dist.all_gather_into_tensor(everyone, mine, group=group)
        return everyone
    everyone[rank] = mine
    peers = [(rank + step) % world for step in range(1, world)]
    wire = Wire(group)
    arrivals = wire.exchange([Message(everyone[p], p, _IDS) for p in peers], [Message(mine, p, _IDS) for p in peers])
    for arrival in arrivals:
        arrival.wait()
    wire.drain()
    return everyone
