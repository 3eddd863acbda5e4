"""The guide's first candidate against the faster arm of every published pair of dispatchers, by group.

Reads the shipped evidence and the guide as they stand; nothing is timed. A pair within two percent is close and counts
for neither side. `in sample`: a rule that led to the prediction cites the repository of the pair, so it is no test.
Pairs of one source share runs, so cases are not independent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections import Counter
from importlib import metadata

from moe_dispatch.core.registry import load_backends
from moe_dispatch.decide.prior import PriorCase, judge, score
from moe_dispatch.evidence.published import load_pairs


def main() -> int:
    """Print the table, what was not counted, and the RESULT line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", action="store_true", help="also list every pair")
    every = parser.parse_args().pairs
    cases = judge(load_pairs(), load_backends())
    counted = [case for case in cases if case.outcome != "not counted"]
    groups: dict[tuple[str, str, str, str], list[PriorCase]] = {}
    for case in counted:
        groups.setdefault((case.hardware, case.network, case.ep_class, case.family), []).append(case)
    print(f"{'hardware':<9}{'network':<9}{'EP':<8}{'family':<14}{'right':>6}{'wrong':>6}{'close':>6}{'in sample':>10}")
    for (hardware, network, size, family), members in sorted(groups.items()):
        one = score(members, "")
        print(
            f"{hardware:<9}{network or '-':<9}{size:<8}{family:<14}{one.hits:>6}{one.misses:>6}{one.close:>6}"
            f"{one.cases - one.fresh:>10}"
        )
    total = score(counted, "all")
    print(
        f"\nall: the guide's first arm was the faster one in {total.hits} of {total.cases} pairs ({total.close} close)"
    )
    print(f"of these, not in sample: {total.fresh_hits} of {total.fresh}")
    measured = Counter(case.measured for case in counted)
    print(f"faster arms: {', '.join(f'{name} {number}' for name, number in measured.most_common())}")
    print("\nnot counted:")
    for why, number in Counter(case.why for case in cases if case.why).most_common():
        print(f"  {number:>3}  {why}")
    if every:
        print()
        for case in counted:
            print(f"{case.outcome:<6}{case.predicted:<10}{case.measured:<10}{case.margin:>7.1%}  {case.pair}")
    figures = {"right": total.hits, "wrong": total.misses, "close": total.close}
    figures |= {"fresh_right": total.fresh_hits, "fresh_wrong": total.fresh_misses}
    figures |= {"not_counted": len(cases) - len(counted)}
    result = {
        "figures": figures,
        "hardware": {"cpu_count": os.cpu_count(), "machine": platform.machine()},
        "versions": {"python": platform.python_version(), "moe-dispatch": metadata.version("moe-dispatch")},
        "labels": ["published_evidence"],
    }
    print(f"RESULT {json.dumps(result)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
