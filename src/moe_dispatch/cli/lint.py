"""`moe-dispatch lint`: findings for a Megatron configuration, before a job is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from moe_dispatch.core.finding import Finding
    from moe_dispatch.megatron.lint import LintResult


def lint(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | RECIPE [K=V...] | -- ARGS...",
            help="Shell script, argument list, YAML; a recipe's name; or a command line after `--`.",
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A declared site (see `hardware`), or `here`: this machine."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Nodes of the declared site.")] = None,
    megatron_version: Annotated[
        str | None, typer.Option(metavar="V", help="Megatron-Core release of the job, such as 0.19.2.")
    ] = None,
    bridge_version: Annotated[
        str | None, typer.Option(metavar="V", help="Megatron-Bridge release of the job, such as 0.6.2.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable exported in the job's shell; repeat for more.")
    ] = None,
    env_file: Annotated[str | None, typer.Option(metavar="FILE", help="Variables as lines K=V.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="A field, stronger than the input; repeat."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=V", help="Version of a package (transformer_engine, nccl, torch, ...); repeat."),
    ] = None,
    world: Annotated[int | None, typer.Option(metavar="N", help="Ranks of the job.")] = None,
    explain: Annotated[str | None, typer.Option(metavar="RULE", help="Say what one rule is about.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Read a job's configuration, say which dispatcher really runs, and what is wrong with it.

    Exit code 1 when a finding is an error, 2 when the input cannot be read.
    """
    from moe_dispatch.flow.lint import LintRequest, run_lint

    if explain is not None:
        return _explain(explain, as_json)
    result = run_lint(
        LintRequest(
            words=tuple(source or ()),
            site=site,
            nodes=nodes,
            core_version=megatron_version,
            bridge_version=bridge_version,
            variables=tuple(env or ()),
            variables_file=env_file,
            settings=tuple(set_ or ()),
            packages=tuple(package or ()),
            world=world,
        )
    )
    if as_json:
        print_json(_document(result))
    else:
        _show(result)
    return 0 if result.is_clean else 1


def _document(result: LintResult) -> dict[str, object]:
    config, effective = result.config, result.effective
    return {
        "framework": config.framework,
        "launcher": config.launcher,
        "recipe": config.recipe,
        "requested": effective.requested if effective else None,
        "effective": effective.effective if effective else None,
        "refused": effective.refused if effective else "",
        "sm_count": effective.sm_count if effective else None,
        "sm_field": effective.sm_field if effective else None,
        "origin": str(effective.origin) if effective else None,
        "settings": {
            name: {"value": value.value, "origin": str(value.origin)} for name, value in sorted(config.values.items())
        },
        "environment": dict(config.env),
        "findings": list(result.findings),
        "undecided": dict(result.undecided),
        "notes": list(config.notes),
    }


def _show(result: LintResult) -> None:
    print(_headline(result))
    for note in result.config.notes:
        print(f"note: {note}")
    for finding in result.findings:
        _show_finding(finding)
    counts = [
        f"{number} {severity}"
        for severity in ("error", "warning", "info")
        if (number := sum(each.severity.value == severity for each in result.findings))
    ]
    print(f"\n{', '.join(counts) or 'no findings'}")
    if result.undecided:
        missing = sorted(set(result.undecided.values()))
        shown = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        print(f"{len(result.undecided)} rules were not judged, because these are not known: {shown}")


def _headline(result: LintResult) -> str:
    effective = result.effective
    if effective is None:
        return "dispatcher: not known (neither the type nor a recipe behind it is given)"
    runs = effective.effective or f"nothing ({effective.refused})"
    asked = f", asked for: {effective.requested}" if not effective.as_requested else ""
    sms = f", SMs: {effective.sm_count} ({effective.sm_field or 'default'})" if effective.sm_count else ""
    return f"dispatcher: {runs}{asked}{sms}, from {effective.origin}"


def _show_finding(finding: Finding) -> None:
    print(f"\n{finding.severity.value}: {finding.message}  [{finding.id}]")
    print(f"  why: {finding.why}")
    for advice in finding.advice:
        print(f"  fix: {advice}")


def _explain(identifier: str, as_json: bool) -> int:
    from moe_dispatch.flow.lint import explain_rule

    lines = explain_rule(identifier)
    if as_json:
        print_json(lines)
    else:
        for name, text in lines.items():
            print(f"{name}: {text}")
    return 0
