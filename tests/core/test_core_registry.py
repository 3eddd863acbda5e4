"""Backends as data: built-in specifications, knobs from a command line, and third parties found without a core edit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moe_dispatch.core import registry
from moe_dispatch.core.errors import UnsupportedByBackend, UsageError
from moe_dispatch.core.registry import get_backend, load_backends_with_findings, load_target, validate_knobs

BUILTIN = ["alltoall", "allgather", "hierarchical", "deepep", "hybridep", "ncclep"]


@pytest.fixture
def fresh_registry() -> Iterator[None]:
    registry.load_backends_with_findings.cache_clear()
    yield
    registry.load_backends_with_findings.cache_clear()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, entries: str, modules: dict[str, str]) -> None:
    """Lay down a distribution as pip would: modules and a dist-info folder on the path."""
    info = folder / "third_party-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[moe_dispatch.backends]\n{entries}\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))


GOOD = """
from moe_dispatch.core.backend import BackendSpec
def spec():
    return BackendSpec(name="ring", title="ring", summary="a ring", kind="builtin", target="ring_backend:Nothing")
"""


def test_ships_the_known_backends_simplest_first() -> None:
    specs, findings = load_backends_with_findings()
    assert list(specs)[:6] == BUILTIN
    assert findings == ()
    assert specs["hierarchical"].megatron is None
    assert specs["deepep"].consumers[0].needs[0].symbols == ("Buffer",)


def test_third_party_is_found_and_a_broken_one_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_registry: None
) -> None:
    entries = "ring = ring_backend:spec\nbad = ring_bad:spec\nodd = ring_odd:spec\nalltoall = ring_taken:spec"
    taken = GOOD.replace('name="ring"', 'name="alltoall"')
    modules = {"ring_backend": GOOD, "ring_bad": "raise OSError('boom')", "ring_odd": "spec = 3", "ring_taken": taken}
    install(tmp_path, monkeypatch, entries, modules)
    specs, findings = load_backends_with_findings()
    assert specs["ring"].summary == "a ring"
    assert specs["alltoall"].target == "moe_dispatch.dispatch.alltoall:AllToAllDispatcher"
    assert sorted(f.id for f in findings) == ["broken-backend-entry-point"] * 2 + ["duplicate-backend"]
    text = " ".join(f.message for f in findings)
    assert "OSError: boom" in text
    assert "third-party" in text
    with pytest.raises(UnsupportedByBackend, match="ring_backend:Nothing"):
        load_target(specs["ring"])


def test_a_typo_names_the_close_match() -> None:
    with pytest.raises(UsageError) as caught:
        get_backend("hierachical")
    assert "known: alltoall" in str(caught.value)
    assert "did you mean 'hierarchical'" in caught.value.fix


def test_targets_of_ours_load_and_packages_without_adapter_say_so() -> None:
    assert load_target(get_backend("hierarchical")).__name__ == "HierarchicalDispatcher"
    with pytest.raises(UnsupportedByBackend, match="no adapter"):
        load_target(get_backend("deepep"))


def test_declared_roundings_are_those_of_the_classes() -> None:
    for name in ("alltoall", "allgather", "hierarchical"):
        spec = get_backend(name)
        assert spec.capabilities.combine_roundings == load_target(spec).combine_roundings


def test_knobs_are_converted_from_strings() -> None:
    assert validate_knobs(get_backend("hierarchical"), {"chunks": "8", "domain_size": "none"}) == {
        "chunks": 8,
        "domain_size": None,
    }
    assert validate_knobs(get_backend("alltoall"), {"form": "p2p"}) == {"form": "p2p"}


@pytest.mark.parametrize(
    ("backend", "knobs", "named"),
    [
        ("hierarchical", {"chunks": 0}, "at least 1"),
        ("hierarchical", {"chunks": 65}, "at most 64"),
        ("hierarchical", {"chunks": 2.5}, "int"),
        ("hierarchical", {"chunks": True}, "int"),
        ("hierarchical", {"chunks": "many"}, "'many'"),
        ("hierarchical", {"chunks": None}, "must be set"),
        ("deepep", {"num_sms": 21}, "a multiple of 2"),
        ("alltoall", {"form": "ring"}, "collective, p2p"),
        ("alltoall", {"chunks": 2}, "its knobs: form"),
        ("allgather", {"chunks": 2}, "its knobs: none"),
    ],
)
def test_wrong_knobs_name_value_and_allowed(backend: str, knobs: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate_knobs(get_backend(backend), knobs)  # type: ignore[arg-type]
    assert named in str(caught.value)
