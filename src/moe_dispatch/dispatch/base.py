"""The dispatcher interface: what every backend, ours or a package's, must do.

Shape legend: T tokens of this rank, K top-k, H hidden, E experts, e experts of this rank, R received (token, local
expert) rows. Rows arrive grouped by local expert; our own dispatchers order them inside an expert by source rank, then
token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from moe_dispatch.core.choice import KnobValue
from moe_dispatch.core.errors import UnsupportedByBackend, UsageError


@dataclass(frozen=True, kw_only=True)
class Dispatched:
    """What the experts of this rank receive.

    Fields:
        x_RH: received rows, grouped by local expert, payload dtype; differentiable.
        probs_R: float32 routing weight of each row; differentiable.
        tokens_per_expert_e: int64 row counts on the CPU, one for each local expert; they sum to R.
        state: opaque; hand it to `combine` unchanged.
    """

    x_RH: torch.Tensor
    probs_R: torch.Tensor
    tokens_per_expert_e: torch.Tensor
    state: Any


class Dispatcher(ABC):
    """One expert-parallel exchange over `group`. Construction is collective over `group` only.

    Args:
        group: process group of the EP ranks; rank i of the group owns experts [i*E/W, (i+1)*E/W).
        num_experts: E, a multiple of the group size W.
        hidden: H, row width in elements.
        topk: K, at most E.
        max_tokens: upper bound of T on any rank of the group, the same value on every rank.
        dtype: payload dtype.
        device: where rows live.
        knobs: backend options by name; unknown names raise `UsageError`.

    Raises:
        UsageError: impossible arguments, the same on every rank.
        UnsupportedByBackend: the backend cannot serve this request; raised on every rank or on none.
    """

    name = ""
    combine_roundings: int = 1

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_experts: int,
        hidden: int,
        topk: int,
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str,
        knobs: Mapping[str, KnobValue] | None = None,
    ) -> None:
        world = dist.get_world_size(group)
        if num_experts < 1 or num_experts % world:
            raise UsageError(
                f"num_experts={num_experts} is not a multiple of the {world} ranks of the expert-parallel group",
                "choose an EP size that divides the number of experts",
            )
        if not 1 <= topk <= num_experts:
            raise UsageError(f"topk={topk} must be between 1 and num_experts={num_experts}")
        if hidden < 1 or max_tokens < 0:
            raise UsageError(f"hidden={hidden} must be at least 1 and max_tokens={max_tokens} at least 0")
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise UnsupportedByBackend(
                f"{self.name}: dtype {dtype} is not supported; allowed: float32, bfloat16, float16"
            )
        self.group = group
        self.world = world
        self.rank = dist.get_rank(group)
        self.num_experts = num_experts
        self.local_experts = num_experts // world
        self.hidden = hidden
        self.topk = topk
        self.max_tokens = max_tokens
        self.dtype = dtype
        self.device = torch.device(device)
        self.knobs: dict[str, KnobValue] = dict(knobs or {})

    @abstractmethod
    def dispatch_start(self, x_TH: torch.Tensor, expert_ids_TK: torch.Tensor, probs_TK: torch.Tensor) -> Any:
        """Begin a dispatch; collective. Returns a pending handle for `dispatch_finish`.

        Args:
            x_TH: payload dtype, any strides; T <= max_tokens, and T may be 0 and may differ between ranks.
            expert_ids_TK: integer tensor; -1 drops that slot; a token must not name an expert twice.
            probs_TK: float32.

        Until the call is finished, inputs must not be changed in place. The backward pass is collective too: all ranks
        must agree on which of x and probs require a gradient.

        Raises:
            UsageError: wrong shapes or dtypes, on the rank that passed them; ids out of range or T > max_tokens, on
                every rank alike.
        """

    @abstractmethod
    def dispatch_finish(self, pending: Any) -> Dispatched:
        """Wait for a dispatch begun by `dispatch_start`; collective."""

    @abstractmethod
    def combine_start(self, y_RH: torch.Tensor, state: Any) -> Any:
        """Begin a combine of expert outputs in the order they were received; collective. `y_RH` must not be changed in
        place until it is finished.
        """

    @abstractmethod
    def combine_finish(self, pending: Any) -> torch.Tensor:
        """Wait for a combine. Returns out_TH, the plain sum of each token's rows (zeros where it has none);
        collective.
        """

    def dispatch(self, x_TH: torch.Tensor, expert_ids_TK: torch.Tensor, probs_TK: torch.Tensor) -> Dispatched:
        """Blocking dispatch; collective, differentiable in x_TH and probs_TK."""
        return self.dispatch_finish(self.dispatch_start(x_TH, expert_ids_TK, probs_TK))

    def combine(self, y_RH: torch.Tensor, state: Any) -> torch.Tensor:
        """Blocking combine; collective, differentiable in y_RH."""
        return self.combine_finish(self.combine_start(y_RH, state))

    def close(self) -> None:  # noqa: B027 - optional hook, most backends own nothing outside torch
        """Release buffers and communicators; collective. The dispatcher must not be used afterwards."""
