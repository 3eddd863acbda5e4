"""The adapter: a Dispatcher subclass."""

from __future__ import annotations

from typing import Any

from fake_backend.transport import Transport
from moe_dispatch.dispatch.alltoall import AllToAllDispatcher


class FakeDispatcher(AllToAllDispatcher):
    """alltoall with the form that the transport prefers."""

    name = "fake"

    def __init__(self, group: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["knobs"] = {"form": Transport.form}
        super().__init__(group, *args, **kwargs)
