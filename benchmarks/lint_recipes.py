"""Lint every recorded recipe of Megatron-Bridge: findings by rule, each error spelled out, and the time it takes."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from importlib import metadata

from moe_dispatch.cli.output import print_table
from moe_dispatch.evidence.published import load_recipes
from moe_dispatch.flow.lint import LintRequest, run_lint

EXPLAINED = {
    "ranks-do-not-divide": "true: the recipe's own sizes need more ranks than the number in its name",
    "tp-without-sequence-parallel": "true: the recipe sets sequence_parallel=False with TP > 1; the MoE layer raises",
    "hybridep-fused-chunks-differ": "true: one chunk size is set to 128, the others are 64 by default, and it fuses",
    "sm-knobs-conflict": "true: 20 is set for deepep on top of the base recipe's 16 for hybridep",
}
"""Rule -> why its errors on unchanged recipes are right, after reading the recipes' source."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="rounds over all recipes, for the time")
    given = parser.parse_args()
    rows = load_recipes()
    counts: Counter[tuple[str, str]] = Counter()
    recipes: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    run_lint(LintRequest(words=(rows[0].recipe,)))
    start = time.perf_counter()
    for _ in range(given.repeat):
        results = [(row, run_lint(LintRequest(words=(row.recipe,)))) for row in rows]
    seconds = time.perf_counter() - start
    for row, result in results:
        for finding in result.findings:
            counts[finding.severity.value, finding.id] += 1
            if finding.severity.value == "error":
                recipes[finding.id].append((row.recipe, finding.message))
    order = ("error", "warning", "info")
    table = sorted(counts.items(), key=lambda each: (order.index(each[0][0]), -each[1]))
    print_table(("severity", "rule", "recipes"), [(severity, name, number) for (severity, name), number in table])
    for name, found in recipes.items():
        print(f"{name}: {EXPLAINED.get(name, 'NOT EXPLAINED')}")
        for recipe, message in found:
            print(f"    {recipe}: {message}")
    judged = len(rows) * given.repeat
    figures = {
        "recipes": len(rows),
        "performance_recipes": sum(row.series == "performance" for row in rows),
        "library_recipes": sum(row.series == "library" for row in rows),
        "errors": sum(number for (severity, _), number in counts.items() if severity == "error"),
        "unexplained_rules": len(set(recipes) - set(EXPLAINED)),
        "ms_for_1000": round(1e6 * seconds / judged, 1),
    }
    versions = {"moe_dispatch": metadata.version("moe-dispatch")}
    print("RESULT " + json.dumps({"figures": figures, "hardware": "cpu", "versions": versions, "labels": []}))


if __name__ == "__main__":
    main()
