"""Every rule speaks in its case, and is silent in the contrast that changes what it is about."""

from __future__ import annotations

from typing import Any

import pytest
from lint_cases import judge, load_cases

from moe_dispatch.core.finding import Severity
from moe_dispatch.megatron.lint import RULE_MODULES
from moe_dispatch.megatron.rules.catalogue import THEMES, load_lint_rules
from moe_dispatch.megatron.rules.registry import CHECKS

CASES = load_cases()
RESOLVED = {name for name, rule in load_lint_rules().items() if rule.theme == "effective"}
"""Rules whose findings come from following the dispatcher's choice, not from a check."""


def ids(*changes: dict[str, Any]) -> set[str]:
    return {finding.id for finding in judge(*changes).findings}


def test_the_valid_job_has_no_finding() -> None:
    assert judge({}).findings == ()


def test_every_rule_has_a_case_and_a_way_to_be_found() -> None:
    assert set(CASES) == set(load_lint_rules())
    assert set(CHECKS) | RESOLVED == set(load_lint_rules())
    assert not set(CHECKS) & RESOLVED
    assert len(RULE_MODULES) + 1 == len(THEMES)


@pytest.mark.parametrize("name", CASES)
def test_rule_speaks_in_its_case_and_not_in_its_contrast(name: str) -> None:
    speaks, silent = CASES[name]
    assert name in ids(speaks)
    assert name not in ids(speaks, silent)


@pytest.mark.parametrize("name", CASES)
def test_a_finding_has_message_reason_fix_and_source(name: str) -> None:
    found = next(each for each in judge(CASES[name][0]).findings if each.id == name)
    assert found.message
    assert found.why
    assert found.advice
    assert found.source
    assert "{" not in found.message + found.why + "".join(found.advice)


@pytest.mark.parametrize("name", [name for name, rule in load_lint_rules().items() if rule.since or rule.until])
def test_a_rule_of_some_releases_is_silent_in_the_others(name: str) -> None:
    rule, (speaks, _) = load_lint_rules()[name], CASES[name]
    others = [version for version in ("0.15.3", "0.17.1", "0.19.2", "0.20.0") if rule.holds_for(version) is False]
    assert others
    for version in others:
        assert name not in ids(speaks, {"$core": version})


def test_an_unknown_release_is_said_and_is_no_error() -> None:
    known = next(each for each in judge(CASES["sm-knobs-conflict"][0]).findings if each.id == "sm-knobs-conflict")
    assert known.severity is Severity.ERROR
    open_result = judge(CASES["sm-knobs-conflict"][0], {"$core": None})
    unknown = next(each for each in open_result.findings if each.id == "sm-knobs-conflict")
    assert unknown.severity is Severity.WARNING
    assert "Megatron-Core 0.19 and newer" in unknown.why
    assert "--megatron-version" in unknown.why
