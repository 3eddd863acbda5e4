"""Settings that all ranks of a group must share: a difference is refused on every rank, before messages mismatch."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from moe_dispatch.core.errors import UsageError


def require_equal(group: dist.ProcessGroup, who: str, settings: Mapping[str, object]) -> None:
    """Compare `settings` over the ranks of `group`; collective.

    Raises:
        UsageError: a setting differs; names it and its values by rank, on every rank alike.
    """
    everyone: list[Mapping[str, object]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everyone, dict(settings), group=group)
    for name in settings:
        values = [other.get(name) for other in everyone]
        if any(value != values[0] for value in values):
            raise UsageError(
                f"{who}: ranks disagree on {name}: {values} by rank", "pass the same value on every rank of the group"
            )
