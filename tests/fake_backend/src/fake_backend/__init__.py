"""A backend of somebody else: found through its entry point, proven by the gate, measured like any other."""

from __future__ import annotations

from moe_dispatch.core.backend import BackendSpec, Capabilities, Consumer, SymbolNeed


def spec() -> BackendSpec:
    """The specification; imports no torch."""
    return BackendSpec(
        name="fake",
        title="fake third-party exchange",
        summary="alltoall by point-to-point messages under another name, for tests",
        kind="package",
        target="fake_backend.dispatcher:FakeDispatcher",
        simplicity=7,
        platforms=("cpu", "cuda"),
        consumers=(
            Consumer(
                name="fake_backend.dispatcher",
                needs=(SymbolNeed(module="fake_backend.transport", symbols=("Transport",)),),
            ),
        ),
        capabilities=Capabilities(row_order="source_rank_token", combine_roundings=1),
        install_hint="pip install moe-dispatch-fake-backend",
        source="tests/fake_backend",
    )
