"""`moe-dispatch backends`: the dispatcher backends, and whether they pass their gate here."""

from __future__ import annotations

from typing import Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json, print_table


def backends(
    gate: Annotated[
        bool, typer.Option("--gate", help="Import each in a child process and say how far it came.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """List the dispatcher backends, with their gate on request.

    With --gate the exit code is 1 when a backend is broken; one that is simply not installed is not.
    """
    from moe_dispatch.core.registry import load_backends_with_findings

    specs, findings = load_backends_with_findings()
    gates = {}
    if gate:
        from moe_dispatch.site.gate import gate_all
        from moe_dispatch.site.probe import probe

        gates = gate_all(specs.values(), site=probe)
    broken = [name for name, result in gates.items() if not result.available and result.reason_class != "not-installed"]
    if as_json:
        print_json(
            [
                {**spec.model_dump(mode="json"), "gate": gates[name].model_dump(mode="json") if name in gates else None}
                for name, spec in specs.items()
            ]
        )
        return 1 if broken else 0
    rows = []
    for name, spec in specs.items():
        mapping = spec.megatron
        shipped = "no" if mapping is None else mapping.flex_backend or mapping.dispatcher_type
        measurable = "yes" if spec.target else "no adapter"
        result = gates.get(name)
        state = "" if result is None else result.level_reached if result.available else result.reason_class
        row = (name, spec.kind, measurable, shipped, ", ".join(spec.knobs))
        rows.append((*row, state) if gate else row)
    headings = ("backend", "kind", "measurable", "Megatron", "knobs")
    print_table((*headings, "gate") if gate else headings, rows)
    for name, result in gates.items():
        if not result.available:
            print(f"{name}: {result.reason}" + (f"\n  fix: {result.fix}" if result.fix else ""))
    for finding in findings:
        print(f"{finding.severity.value}: {finding.message}")
    return 1 if broken else 0
