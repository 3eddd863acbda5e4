"""`hierarchical`: a token crosses to each domain once, then to each rank there once, and is expanded to its experts on
arrival.

Combine returns partial sums along the same path: summed on the rank, then in the domain, then at the token. One hop
when there is a single domain. Needs torch.distributed only, so it runs on any fabric that gloo or NCCL runs on.
Knobs: `chunks` cuts each source's tokens so that crossing and local work overlap (more on slow links, one or two on
fast ones); `domain_size` overrides the ranks per host.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch.agree import require_equal
from moe_dispatch.dispatch.domains import detect_domains
from moe_dispatch.dispatch.exchange import ExchangeDispatcher
from moe_dispatch.dispatch.hierarchical_grouped import GroupedExchange
from moe_dispatch.dispatch.hierarchical_plan import HierarchicalPlan
from moe_dispatch.dispatch.hierarchical_stream import StreamExchange
from moe_dispatch.dispatch.ids import share_expert_ids

_DEFAULT_CHUNKS = 4
_Result = tuple[torch.Tensor, torch.Tensor | None]
_MOST_CHUNKS = 64


class _Executor(Protocol):
    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: HierarchicalPlan) -> Any: ...

    def scatter_finish(self, moving: Any) -> _Result: ...

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: HierarchicalPlan) -> Any: ...

    def gather_finish(self, moving: Any) -> _Result: ...


class HierarchicalDispatcher(ExchangeDispatcher):
    """See the module. Construction, dispatch and combine are collective over the group."""

    name = "hierarchical"
    combine_roundings = 3

    def configure(self) -> None:
        """See `ExchangeDispatcher.configure`."""
        unknown = set(self.knobs) - {"chunks", "domain_size"}
        chunks = self.knobs.get("chunks")
        chunks = _DEFAULT_CHUNKS if chunks is None else chunks
        size = self.knobs.get("domain_size")
        integers = all(isinstance(v, int) and not isinstance(v, bool) for v in (chunks, 0 if size is None else size))
        if unknown or not integers or not 1 <= int(chunks) <= _MOST_CHUNKS:
            raise UsageError(
                f"hierarchical: knobs {self.knobs} are not valid; "
                f"allowed: chunks from 1 to {_MOST_CHUNKS}, domain_size a divisor of the group size"
            )
        require_equal(self.group, self.name, {"max_tokens": self.max_tokens, "chunks": chunks, "domain_size": size})
        self.domains = detect_domains(self.group, None if size is None else int(size))
        grouped = dist.get_backend(self.group) == "nccl"
        self.chunks = int(chunks) if self.domains.count > 1 and not grouped else 1
        executor = GroupedExchange if grouped else StreamExchange
        self._exchange: _Executor = executor(self.group, self.domains, self.pool, self.hidden, self.dtype)

    def make_plan(self, ids_TK: torch.Tensor, num_tokens: int) -> HierarchicalPlan:
        """Share expert ids and derive every count from them; collective."""
        ids_WMK, tokens = share_expert_ids(self.group, ids_TK, self.num_experts, self.max_tokens, self.device)
        return HierarchicalPlan(ids_WMK, tokens, self.num_experts, self.domains, self.rank, self.chunks)

    def scatter_start(self, x_TH: torch.Tensor, probs_TK: torch.Tensor | None, plan: HierarchicalPlan) -> Any:
        """See `ExchangeDispatcher`."""
        return self._exchange.scatter_start(x_TH, probs_TK, plan)

    def scatter_finish(self, handle: Any) -> _Result:
        """See `ExchangeDispatcher`."""
        return self._exchange.scatter_finish(handle)

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: HierarchicalPlan) -> Any:
        """See `ExchangeDispatcher`."""
        return self._exchange.gather_start(y_RH, probs_grad_R, plan)

    def gather_finish(self, handle: Any) -> _Result:
        """See `ExchangeDispatcher`."""
        return self._exchange.gather_finish(handle)
