"""The table of topology rules: complete, bound to checks, documented; and versions that a rule is about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moe_dispatch.core.finding import Severity
from moe_dispatch.core.registry import load_backends
from moe_dispatch.site.exchange import load_exchange
from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.site.topology import TopologyInput, TopologyRule, check_topology, load_topology_rules
from moe_dispatch.site.topology_check import CHECKS
from moe_dispatch.site.versions import matches, release

DOCUMENT = Path(__file__).parents[2] / "docs" / "site.md"


def test_every_check_has_a_rule_and_every_rule_a_check() -> None:
    used = {rule.check for rule in load_topology_rules().values()} - {None}
    assert used == set(CHECKS)


def test_no_text_is_cut_short() -> None:
    for rule in load_topology_rules().values():
        for text in (rule.summary, rule.message, rule.why, rule.source, rule.holds_for, *rule.advice):
            assert text.count("(") == text.count(")"), rule.id
            assert not text.endswith((",", ";", ":")), rule.id


def test_rules_name_backends_and_gpus_that_exist() -> None:
    known = set(load_backends())
    for rule in load_topology_rules().values():
        assert set(rule.backends) <= known, rule.id
        assert set(rule.gpus) <= set(load_hardware()), rule.id
        for conditions in rule.versions.values():
            assert all(matches("1", condition) in (True, False) for condition in conditions)
    assert set(load_exchange()) <= known
    for facts in load_exchange().values():
        assert set(facts.refused_on) <= set(load_hardware())


def test_the_document_lists_every_rule_as_it_is() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (error|warning|info) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    expected = [(rule.id, rule.severity.value, rule.summary) for rule in load_topology_rules().values()]
    assert rows == expected


@pytest.mark.parametrize(
    "site", [Site(name="x", declared=False, device="cpu"), Site(name="y", declared=False, device="cuda")]
)
@pytest.mark.parametrize("backend", ["alltoall", "deepep", "hybridep", "hierarchical", "somebody_elses"])
def test_a_site_of_which_nothing_is_known_brings_no_finding_about_domains(backend: str, site: Site) -> None:
    assert check_topology(TopologyInput(backend=backend, site=site, ep=16, world=64)) == []


def rule(**fields: object) -> TopologyRule:
    text = {"summary": "s", "message": "m", "why": "w", "advice": ("a",), "source": "x", "holds_for": "all"}
    return TopologyRule.model_validate({"id": "some-rule", "severity": Severity.INFO, **text, **fields})


def test_a_rule_speaks_of_its_backends_gpus_and_versions() -> None:
    assert rule().speaks_of("any", None, {})
    assert not rule(backends=["deepep"]).speaks_of("hybridep", None, {})
    assert not rule(gpus=["b300"]).speaks_of("deepep", None, {})
    narrow = rule(versions={"nccl": ["==2.27.5", ">=2.30"]})
    assert narrow.speaks_of("x", None, {"nccl": "2.31.1"})
    assert not narrow.speaks_of("x", None, {"nccl": "2.29.7"})
    assert narrow.speaks_of("x", None, {"nccl": None})
    assert not narrow.model_copy(update={"needs_version": True}).speaks_of("x", None, {})


@pytest.mark.parametrize(
    ("version", "condition", "expected"),
    [
        ("3.4.5", "==3.4.5", True),
        ("3.4.5+cuda13", "== 3.4.5", True),
        ("3.10.0", ">=3.9", True),
        ("2.30", ">=2.30.0", True),
        ("v1.2", "<1.2.1", True),
        ("1.2", ">1.2.0", False),
        ("1.2", "<=1.2.0", True),
    ],
)
def test_versions_are_compared_by_number(version: str, condition: str, expected: bool) -> None:
    assert matches(version, condition) is expected


def test_a_condition_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is not one of"):
        matches("1.0", "about 1")
    assert release("main") == ()
