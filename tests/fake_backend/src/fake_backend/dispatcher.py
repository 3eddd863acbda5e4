"""The adapter: a Dispatcher subclass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from fake_backend.transport import Transport
from moe_dispatch.core.choice import KnobValue
from moe_dispatch.dispatch.alltoall import AllToAllDispatcher


class FakeDispatcher(AllToAllDispatcher):
    """alltoall with the form that the transport prefers."""

    name = "fake"

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
        chosen = {**(knobs or {}), "form": Transport.form}
        super().__init__(group, num_experts, hidden, topk, max_tokens, dtype, device, chosen)
