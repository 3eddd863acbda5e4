"""Stands for the library that an adapter wraps."""

from __future__ import annotations


class Transport:
    """Moves nothing by itself; the adapter only asks which form it prefers."""

    form = "p2p"
