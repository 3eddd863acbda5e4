"""Which upstream rule is said by which of ours, and why the others are left out: a table from the tests' mapping."""

from __future__ import annotations

import json
from collections import Counter
from importlib import metadata
from pathlib import Path

import yaml

from moe_dispatch.cli.output import print_table
from moe_dispatch.megatron.rules.catalogue import load_lint_rules
from moe_dispatch.site.topology import load_topology_rules

MAPPING = Path(__file__).parents[1] / "tests" / "megatron" / "upstream_rules.yaml"


def main() -> None:
    mapping = yaml.safe_load(MAPPING.read_text(encoding="utf-8"))
    known = {**load_lint_rules(), **load_topology_rules()}
    print_table(
        ("upstream", "about", "our rules, or why none"),
        [(name, each["what"], ", ".join(each.get("rules", ())) or each["left_out"]) for name, each in mapping.items()],
    )
    covered = {rule for each in mapping.values() for rule in each.get("rules", ())}
    extra = sorted(set(load_lint_rules()) - covered)
    print(f"our rules that no upstream id names ({len(extra)}): {', '.join(extra)}")
    counts = Counter("left_out" if "left_out" in each else "covered" for each in mapping.values())
    figures = {"upstream_rules": len(mapping), **counts, "rules": len(load_lint_rules()), "known": len(known)}
    print(
        "RESULT "
        + json.dumps(
            {
                "figures": figures,
                "hardware": "none",
                "versions": {"moe_dispatch": metadata.version("moe-dispatch")},
                "labels": [],
            }
        )
    )


if __name__ == "__main__":
    main()
