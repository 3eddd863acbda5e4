"""What our own dispatchers share: autograd around two raw operations and a plan made once from the routing.

`scatter` moves rows from tokens to experts, `gather` sums rows from experts back to tokens. Dispatch is scatter forward
and gather backward; combine is the reverse, on the same plan, so a backward pass exchanges no routing again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from moe_dispatch.core.choice import KnobValue
from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch.base import Dispatched, Dispatcher
from moe_dispatch.dispatch.pool import BufferPool


@dataclass(frozen=True)
class PendingDispatch:
    """A dispatch under way: the inputs autograd must see, the plan, and what `scatter_start` returned."""

    x_TH: torch.Tensor
    probs_TK: torch.Tensor
    plan: Any
    handle: Any


@dataclass(frozen=True)
class PendingCombine:
    """A combine under way."""

    y_RH: torch.Tensor
    plan: Any
    handle: Any


class ExchangeDispatcher(Dispatcher):
    """Base of alltoall, allgather and hierarchical. Subclasses give the plan and the raw, autograd-free operations.

    `pool` holds the buffers of this dispatcher; rows that callers hold keep theirs.
    """

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
        super().__init__(group, num_experts, hidden, topk, max_tokens, dtype, device, knobs)
        self.pool = BufferPool(self.device)
        self.configure()

    @abstractmethod
    def configure(self) -> None:
        """Check `self.knobs` and set up what they decide; may be collective.

        Raises:
            UsageError: an unknown knob or an impossible value.
        """

    def close(self) -> None:
        """Give pooled memory back."""
        self.pool.clear()

    @abstractmethod
    def make_plan(self, ids_TK: torch.Tensor, num_tokens: int) -> Any:
        """Everything derived from the routing, `ids_TK` int32 or int64; collective. The plan has an attribute
        `tokens_per_expert_e` (CPU int64).

        Raises:
            UsageError: some rank passed ids out of range or too many tokens; raised on every rank.
        """

    @abstractmethod
    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: Any) -> Any:
        """Begin tokens -> expert rows; `probs_TK` is None in the backward pass of combine. Collective."""

    @abstractmethod
    def scatter_finish(self, handle: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(x_RH, probs_R or None); collective."""

    @abstractmethod
    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: Any) -> Any:
        """Begin expert rows -> sums by token; `probs_grad_R` only in the backward pass of dispatch. Collective."""

    @abstractmethod
    def gather_finish(self, handle: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(out_TH, gradient of probs_TK or None); collective."""

    def dispatch_start(
        self, x_TH: torch.Tensor, expert_ids_TK: torch.Tensor, probs_TK: torch.Tensor
    ) -> PendingDispatch:
        """See `Dispatcher.dispatch_start`."""
        self._check(x_TH, expert_ids_TK, probs_TK)
        with torch.no_grad():
            ids_TK = expert_ids_TK.detach()
            if ids_TK.dtype != torch.int32:  # in narrower types comparisons with -1 or E wrap around
                ids_TK = ids_TK.to(torch.int64)
            plan = self.make_plan(ids_TK, x_TH.shape[0])
            handle = self.scatter_start(x_TH.detach(), probs_TK.detach(), plan)
        return PendingDispatch(x_TH, probs_TK, plan, handle)

    def dispatch_finish(self, pending: PendingDispatch) -> Dispatched:
        """See `Dispatcher.dispatch_finish`."""
        x_RH, probs_R = _Dispatch.apply(pending.x_TH, pending.probs_TK, self, pending)  # type: ignore[no-untyped-call]
        return Dispatched(
            x_RH=x_RH, probs_R=probs_R, tokens_per_expert_e=pending.plan.tokens_per_expert_e, state=pending.plan
        )

    def combine_start(self, y_RH: torch.Tensor, state: Any) -> PendingCombine:
        """See `Dispatcher.combine_start`."""
        rows = int(state.tokens_per_expert_e.sum())
        if y_RH.shape != (rows, self.hidden) or y_RH.dtype != self.dtype:
            raise UsageError(
                f"{self.name}: combine got {tuple(y_RH.shape)} {y_RH.dtype}, "
                f"but this dispatch produced ({rows}, {self.hidden}) {self.dtype}"
            )
        with torch.no_grad():
            handle = self.gather_start(y_RH.detach(), None, state)
        return PendingCombine(y_RH, state, handle)

    def combine_finish(self, pending: PendingCombine) -> torch.Tensor:
        """See `Dispatcher.combine_finish`."""
        out_TH: torch.Tensor = _Combine.apply(pending.y_RH, self, pending)  # type: ignore[no-untyped-call]
        return out_TH

    def _check(self, x_TH: torch.Tensor, ids_TK: torch.Tensor, probs_TK: torch.Tensor) -> None:
        tokens = x_TH.shape[0]
        if x_TH.shape != (tokens, self.hidden) or x_TH.dtype != self.dtype:
            raise UsageError(
                f"{self.name}: x has shape {tuple(x_TH.shape)} and {x_TH.dtype}; "
                f"expected (T, {self.hidden}) {self.dtype}"
            )
        if ids_TK.shape != (tokens, self.topk) or ids_TK.is_floating_point() or ids_TK.dtype == torch.bool:
            raise UsageError(
                f"{self.name}: expert ids have shape {tuple(ids_TK.shape)} and {ids_TK.dtype}; "
                f"expected ({tokens}, {self.topk}) integers"
            )
        if probs_TK.shape != (tokens, self.topk) or probs_TK.dtype != torch.float32:
            raise UsageError(
                f"{self.name}: probs have shape {tuple(probs_TK.shape)} and {probs_TK.dtype}; "
                f"expected ({tokens}, {self.topk}) float32"
            )


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TH: torch.Tensor, probs_TK: torch.Tensor, dispatcher: ExchangeDispatcher, pending: PendingDispatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.dispatcher, ctx.plan = dispatcher, pending.plan
        x_RH, probs_R = dispatcher.scatter_finish(pending.handle)
        assert probs_R is not None
        return x_RH, probs_R

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RH: torch.Tensor, probs_grad_R: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wants_probs = ctx.needs_input_grad[1]
        handle = ctx.dispatcher.gather_start(grad_RH, probs_grad_R if wants_probs else None, ctx.plan)
        grad_TH, probs_grad_TK = ctx.dispatcher.gather_finish(handle)
        return grad_TH, probs_grad_TK, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_RH: torch.Tensor, dispatcher: ExchangeDispatcher, pending: PendingCombine) -> torch.Tensor:
        ctx.dispatcher, ctx.plan = dispatcher, pending.plan
        return dispatcher.gather_finish(pending.handle)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TH: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        handle = ctx.dispatcher.scatter_start(grad_TH, None, ctx.plan)
        return ctx.dispatcher.scatter_finish(handle)[0], None, None
