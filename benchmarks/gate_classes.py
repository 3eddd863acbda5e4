"""What the gate says about the exchange packages of several environments, as the table of docs/gate.md.

    python benchmarks/gate_classes.py none=/usr/bin/python3 deepep=/venvs/a/bin/python deepep=/venvs/b/bin/python@_C

Each argument names an environment and its interpreter; `@MODULE` asks for one module alone, not for what Megatron-Core
and the packages' own users import. The interpreter needs nothing but the packages under test.
"""

from __future__ import annotations

import json
import platform
import sys

from moe_dispatch.bench.gate_permute import probe_permute
from moe_dispatch.core.backend import BackendSpec, Consumer, SymbolNeed
from moe_dispatch.core.registry import load_backends
from moe_dispatch.site.gate import gate, gate_consumers
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site
from moe_dispatch.site.probe import probe

USAGE = "give environments as NAME=PYTHON or NAME=PYTHON@MODULE"


def only(module: str) -> BackendSpec:
    """A backend that is nothing but one module."""
    consumer = Consumer(name=module, needs=(SymbolNeed(module=module),))
    return BackendSpec(name=module, title=module, summary=module, kind="package", consumers=(consumer,))


def outcomes(argument: str, site: Site) -> tuple[str, list[GateResult]]:
    """Name of the environment, and one result for each backend and consumer that says more than `not installed`."""
    name, _, rest = argument.partition("=")
    python, _, module = rest.partition("@")
    if module:
        return name, [gate(only(module), python=python, site=site)]
    packages = [spec for spec in load_backends().values() if spec.kind == "package"]
    results = [result for spec in packages for result in gate_consumers(spec, python=python, site=site)]
    present = [result for result in results if result.status != "not-installed"]
    return name, present or results


def main(arguments: list[str]) -> int:
    """Print one row for each environment, backend and consumer."""
    if not arguments or not all("=" in argument for argument in arguments):
        print(USAGE, file=sys.stderr)
        return 2
    site = probe()
    rows = [(name, result) for name, results in (outcomes(each, site) for each in arguments) for result in results]
    print("| environment | backend for | level | class | what the gate says |\n|---|---|---|---|---|")
    for name, result in rows:
        said = result.reason or ", ".join(each for level in result.levels for each in level.evidence)
        words = f"{result.reason_class} {result.variant}".strip() or "-"
        print(f"| {name} | {result.backend} for {result.consumer} | {result.level_reached} | {words} | {said[:200]} |")
    permute = probe_permute()
    print(f"\nfused permute: {permute.state} {', '.join(permute.implementations)}{permute.reason}")
    figures = {f"{name} {result.backend} {result.consumer} seconds": round(result.seconds, 2) for name, result in rows}
    classes = {f"{name} {result.backend} {result.consumer}": result.reason_class for name, result in rows}
    versions = {"python": platform.python_version()}
    result_line = {"figures": figures, "classes": classes, "hardware": site.summary, "versions": versions, "labels": []}
    print("RESULT " + json.dumps(result_line))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
