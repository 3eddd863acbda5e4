"""The catalogue as a whole: its page is current, and no upstream rule is left out without a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_dispatch.megatron.rules.catalogue import load_lint_rules
from moe_dispatch.megatron.rules.reference import rules_page
from moe_dispatch.site.topology import load_topology_rules

ROOT = Path(__file__).parents[2]
UPSTREAM: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "upstream_rules.yaml").read_text(encoding="utf-8")
)
COLLECTED = {
    *(f"M{number:02}" for number in range(1, 40)),
    *(f"D{number:02}" for number in range(1, 20)),
    *(f"G{number:02}" for number in range(1, 26)),
    *(f"E{number:02}" for number in range(1, 17)),
    *(f"C{number:02}" for number in range(1, 18)),
    *(f"V{number:02}" for number in range(1, 17)),
    *(f"S{number:02}" for number in range(1, 16)),
    "G10b",
}


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    assert page == rules_page(), "run python -m moe_dispatch.megatron.rules.reference > docs/reference/rules.md"


def test_every_collected_upstream_rule_is_in_the_mapping() -> None:
    assert set(UPSTREAM) == COLLECTED


@pytest.mark.parametrize("name", UPSTREAM)
def test_an_upstream_rule_is_said_or_left_out_with_a_reason(name: str) -> None:
    entry = UPSTREAM[name]
    assert entry["what"]
    assert bool(entry.get("rules")) != bool(entry.get("left_out"))
    unknown = set(entry.get("rules", ())) - {*load_lint_rules(), *load_topology_rules()}
    assert not unknown


def test_no_id_is_used_by_lint_and_topology() -> None:
    assert not set(load_lint_rules()) & set(load_topology_rules())
